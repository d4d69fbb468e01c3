"""A worker over an SQS queue: the whole of it.

REQUEST_QUEUE_URL=https://sqs.eu-central-1.amazonaws.com/123456789012/requests python3 serve.py
"""

import logging
import os

from spotkeeper_worker import Worker
from spotkeeper_worker.sqs import serve

logging.basicConfig(level=logging.INFO)
with Worker() as worker:
    model = len  # load what serves; this counts letters
    worker.ready()
    worker.stop_on_signals()
    serve(worker, os.environ["REQUEST_QUEUE_URL"], model)
