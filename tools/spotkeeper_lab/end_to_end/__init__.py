"""A virtual day of cloud, workers and queue around the deployed functions."""
