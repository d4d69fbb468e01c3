"""A machine to test with: instance metadata, its group's hooks, and a queue that takes its logs."""

from spotkeeper_worker.testing.machine import FakeMachine
from spotkeeper_worker.testing.process import start_agent, until
from spotkeeper_worker.testing.serving import FakeServer

__all__ = ["FakeMachine", "FakeServer", "start_agent", "until"]
