"""Drivers of the lab: the demo, random faults, and the local AWS."""
