"""The only importers of boto3: each adapter stands behind a port of `spotkeeper.ports`."""
