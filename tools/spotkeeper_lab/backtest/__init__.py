"""Replay recorded spot markets through policies, beside the best that any could have done."""
