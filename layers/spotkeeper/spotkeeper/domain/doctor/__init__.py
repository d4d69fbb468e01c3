"""What is wrong with an account, a stack and its fleets: facts in, findings out."""
