"""Desired against serving: shortfall, expected losses, backfill and release."""
