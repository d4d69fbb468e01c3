"""Commands of the lab: simulated markets, clouds and days; nothing on an account."""
