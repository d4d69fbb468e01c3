"""What is measured: `python -m bench` prints the figures of every file, or of those named."""
