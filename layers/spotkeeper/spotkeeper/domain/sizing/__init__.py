"""Load to instances: how many workers the fleet needs."""
