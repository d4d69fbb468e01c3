"""What a snapshot says: who serves, who is launching, what explains a gap, what is remembered."""
