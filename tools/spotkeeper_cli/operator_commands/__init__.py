"""Commands for those who run a stack: over `spotkeeper_operator`, without the lab."""
