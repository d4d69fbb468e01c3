"""Replay: what each sizing rule would have done with a trace of requests, on a virtual clock."""
