"""Desired against serving: what lacks, what may be lost, what stands in, what goes back."""
