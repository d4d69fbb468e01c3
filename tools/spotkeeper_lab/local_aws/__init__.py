"""AWS in this process: moto with the simulated cloud behind it."""
