"""What the functions do: one round of read, decide, act and record, over ports."""
