"""What can go wrong in a lab, how it is ordered, and how it is done."""
