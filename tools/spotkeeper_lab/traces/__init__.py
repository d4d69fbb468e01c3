"""Spot markets and request logs: read, converted, exported, generated."""
