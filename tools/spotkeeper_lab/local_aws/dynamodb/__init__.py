"""DynamoDB as the product uses it: strict about expressions, and quick."""
