"""Collects the doctor's facts; a fact that is denied becomes `Unseen`, not an error."""
