"""Workers, not instances: which do not work, and what the health controller remembers."""
