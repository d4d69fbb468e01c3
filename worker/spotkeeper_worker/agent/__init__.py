"""The agent: one process a machine, between its workers and AWS."""
