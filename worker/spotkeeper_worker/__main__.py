"""`python -m spotkeeper_worker` is `spotkeeper-agent`."""

import sys

from spotkeeper_worker.agent.cli import main

sys.exit(main())
