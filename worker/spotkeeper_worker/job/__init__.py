"""A machine that runs one job: `spotkeeper-agent job`."""
