"""AWS with the simulated cloud behind it: in process with moto, over HTTP with ministack."""
