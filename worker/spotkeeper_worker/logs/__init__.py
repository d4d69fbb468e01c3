"""The way of a search log: from a worker, by the agent's socket and journal, to its queue."""
