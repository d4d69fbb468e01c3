"""What an operator can set of a fleet: each setting defined once, with unit, bounds and meaning."""
