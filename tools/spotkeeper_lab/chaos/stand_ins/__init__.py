"""AWS as the deployed code finds it: strict about what it is asked, slow, and at times wrong."""
