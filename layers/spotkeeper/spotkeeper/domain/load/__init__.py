"""Search logs to load: digests, slots, histograms, arrivals, history, the request queue."""
