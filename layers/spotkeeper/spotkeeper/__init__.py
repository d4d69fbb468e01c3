"""Spotkeeper keeps a fleet of GPU workers serving on spot, with on-demand in the gaps."""
