"""Groups, instances and their prices."""
