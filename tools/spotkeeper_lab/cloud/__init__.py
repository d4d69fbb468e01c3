"""The simulated cloud: Auto Scaling groups over a spot market, in virtual time."""
