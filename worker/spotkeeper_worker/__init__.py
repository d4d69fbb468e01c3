"""What a worker of a Spotkeeper fleet needs: `Worker`, and the loops in `sqs` and `rabbitmq`."""

from spotkeeper_worker.roster import NameTaken
from spotkeeper_worker.worker import Forked, Request, Worker

__all__ = ["Forked", "NameTaken", "Request", "Worker"]
__version__ = "0.2.0"
