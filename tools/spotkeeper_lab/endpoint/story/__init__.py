"""Scenarios: a lab in which things go wrong in time, what is seen of it, and what was promised."""
