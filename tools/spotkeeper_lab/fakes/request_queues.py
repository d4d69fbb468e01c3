"""The fake of the queues port, beside the others in `fakes`."""

from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import Gone
from spotkeeper_lab.fakes.faults import Faults


class FakeRequestQueues:
    """Request queues by URL; a test sets their lengths."""

    def __init__(self, faults: Faults | None = None) -> None:
        """Begin without any."""
        self.lengths: dict[str, QueueLength] = {}
        self._faults = faults or Faults()

    def length(self, url: str) -> QueueLength:
        """Give a queue's length; one that was never set does not exist."""
        with self._faults.call("length"):
            if url not in self.lengths:
                raise Gone(f"reading the request queue {url}: it does not exist")
            return self.lengths[url]
