"""Where the outside comes in: events, documents, search logs and settings, each checked once."""
