"""A worker over an SQS queue: the whole of it.

REQUEST_QUEUE_URL=https://sqs.eu-central-1.amazonaws.com/123456789012/requests python3 serve.py
"""

import logging
import os

from spotkeeper_worker import Worker
from spotkeeper_worker.sqs import serve


def load_model():
    """Load what serves; here it counts letters."""
    return len


logging.basicConfig(level=logging.INFO)
with Worker() as worker:
    model = load_model()
    worker.ready()
    worker.stop_on_signals()
    serve(worker, os.environ["REQUEST_QUEUE_URL"], model)
