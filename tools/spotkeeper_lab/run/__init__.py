"""Drivers of the lab: the demo, random faults, backtest, replay, and the local AWS."""
