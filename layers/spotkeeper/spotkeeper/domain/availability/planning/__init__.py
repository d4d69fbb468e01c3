"""What is asked of AWS: backfill, marks and replacements, spares, processes."""
