"""Random faults: the deployed code in a virtual world in which calls take time and things break."""
