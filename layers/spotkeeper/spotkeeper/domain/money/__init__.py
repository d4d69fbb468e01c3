"""What the fleets cost: instances over time, their prices, and what else they would have cost."""
