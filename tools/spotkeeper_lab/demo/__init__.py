"""The demo: a day, its table and its picture."""
