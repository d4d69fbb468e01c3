"""What a turn remembers: what it saw, and what became of what it asked."""
