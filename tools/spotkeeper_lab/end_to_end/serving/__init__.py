"""Who serves the requests of a day: workers, their machines, and the search logs that they send."""
