"""Workers, not instances: who does not work, and what the health controller remembers."""
