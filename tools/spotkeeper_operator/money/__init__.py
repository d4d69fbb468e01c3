"""What does it cost? Ledger and prices, and a machine of one's own beside the cloud."""
