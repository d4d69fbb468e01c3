"""Every policy that can be tried on a market: the deployed one, its peers, and the optimum."""
