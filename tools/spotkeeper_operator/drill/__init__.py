"""A drill: what happens when spot instances are taken, tried on purpose."""
