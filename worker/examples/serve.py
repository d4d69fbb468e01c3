"""A worker over an SQS queue: the whole of it.

REQUEST_QUEUE_URL=https://sqs.eu-central-1.amazonaws.com/123456789012/requests python3 serve.py
"""

import logging
import os

import boto3

from spotkeeper_worker import Worker
from spotkeeper_worker.sqs import serve


def load_model():
    """Load what serves; here it counts letters."""
    return len


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    queue_url = os.environ["REQUEST_QUEUE_URL"]
    with Worker() as worker:
        load_model()

        def answer(body: str) -> None:
            pass

        worker.ready()
        worker.stop_on_signals()
        serve(worker, queue_url, answer, client=boto3.client("sqs"))


if __name__ == "__main__":
    main()
