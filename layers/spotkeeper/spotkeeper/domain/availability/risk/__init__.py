"""What may be lost before help comes, and what is held against it."""
