"""The simulated cloud behind the endpoint, in real time: what of AWS it answers itself."""
