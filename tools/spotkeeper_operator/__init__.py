"""What an operator asks of a deployed Spotkeeper: is it whole, why, what it saves."""
