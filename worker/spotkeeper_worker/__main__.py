"""`python -m spotkeeper_worker` is `spotkeeper-agent`."""

import sys

from spotkeeper_worker.cli import main

sys.exit(main())
