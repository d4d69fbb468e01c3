"""The `spotkeeper` command."""
