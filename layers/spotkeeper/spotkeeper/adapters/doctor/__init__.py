"""Gathers what the doctor looks at; each fact that is denied becomes `Unseen`, not an error."""
