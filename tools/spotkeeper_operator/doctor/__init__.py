"""What is wrong with it? Facts of the account, looked at by the checks of the domain."""
