"""All input from outside: events, documents, search logs and settings, each checked once."""
