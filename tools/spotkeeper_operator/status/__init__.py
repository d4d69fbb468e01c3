"""Is it whole? A stack on one screen, and its live page."""
