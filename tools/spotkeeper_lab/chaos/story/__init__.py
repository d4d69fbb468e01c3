"""What is drawn by a seed: faults and fleets, and the time in which they happen."""
