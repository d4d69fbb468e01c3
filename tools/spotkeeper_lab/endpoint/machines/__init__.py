"""What runs on the machines of a lab: workers that serve, and the agents beside them."""
