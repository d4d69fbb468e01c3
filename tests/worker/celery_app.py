"""An app of Celery's as a team writes it; the tests run its workers."""

# mypy: disable-error-code="untyped-decorator"

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from spotkeeper_worker.celery import install

BROKER = os.environ.get("BROKER", "memory://")
app = Celery("shop", broker=BROKER)
app.conf.update(
    broker_transport_options={
        # Nothing is to wait for it: longer than any test.
        "visibility_timeout": 3600,
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 2,
    }
    | ({"polling_interval": 0.1} if BROKER.startswith("sqs") else {})
    # A producer that ends without it may leave its last messages behind.
    | ({"confirm_publish": True} if BROKER.startswith("amqp") else {}),
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ.get("QUEUE", "celery"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=4,
)
if "PLAIN" not in os.environ:
    install(app, margin_s=0.5)
DONE = Path(os.environ.get("DONE", "done"))


@app.task
def work(name: str, seconds: float = 0.05) -> None:
    time.sleep(seconds)
    with DONE.open("a") as file:
        file.write(f"{name}\n")


@app.task
def fail() -> None:
    raise ValueError("no")


@app.task(soft_time_limit=1)
def soft() -> None:
    time.sleep(30)


@app.task(time_limit=1, acks_late=False)
def hard() -> None:
    time.sleep(30)


@app.task(bind=True, max_retries=1)
def again(self: Any) -> None:
    if not self.request.retries:
        raise self.retry(countdown=0)
