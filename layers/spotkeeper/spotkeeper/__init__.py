"""Spotkeeper: keeps a fleet of workers whole on spot instances, with on-demand in the gaps."""
