"""What a batch of search logs came to: counts for the log, the metrics and the queue."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spotkeeper.border.agent_note import AgentNote
from spotkeeper.border.search_log import MessageRefused


class NotStored(Exception):
    """A message whose digest the load table did not take; it is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """What arrived for one fleet and was stored.

    `late` and `skewed` count logs, `duplicates` messages that repeat logs of another of the batch.
    """

    logs: int
    late: int
    skewed: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCounts:
    """What agents tell of logs that never came: lost or refused on a machine; and clamped ones."""

    lost: int = 0
    clamped: int = 0
    refused: int = 0

    def and_of(self, note: AgentNote) -> "MachineCounts":
        """Add what one more agent tells."""
        return MachineCounts(
            lost=self.lost + note.lost,
            clamped=self.clamped + note.clamped,
            refused=self.refused + note.refused,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """What became of a batch: why messages failed, by message id, and the counts by fleet.

    `left_out` has, by message id, why single logs of messages that were read do not count.
    `machines` has what agents tell, by fleet; `looks_unkept` why their looks were not kept, whose
    messages count all the same.
    """

    refused: Mapping[str, str]
    unstored: Mapping[str, str]
    fleets: Mapping[str, FleetCounts]
    left_out: Mapping[str, tuple[str, ...]]
    machines: Mapping[str, MachineCounts] = field(default_factory=dict)
    looks_unkept: str = ""

    def metrics(self, default_fleet: str) -> dict[str, dict[str, float]]:
        """Give each fleet's metrics; a refused message counts with the default fleet.

        Lost is every log that the load lacks: those that agents gave up, those that came too late
        to matter, and those left out.
        """
        metrics = {
            fleet: {
                "SearchLogs": float(counts.logs),
                "LateSearchLogs": float(counts.late),
                "ClockSkewed": float(counts.skewed),
                "DuplicateMessages": float(counts.duplicates),
            }
            for fleet, counts in self.fleets.items()
        }
        refused = {
            "MessagesRefused": len(self.refused),
            "SearchLogsRefused": sum(map(len, self.left_out.values())),
        }
        for name, count in refused.items():
            if count:
                metrics.setdefault(default_fleet, {})[name] = float(count)
        for fleet, told in self.machines.items():
            if told.clamped:
                metrics.setdefault(fleet, {})["SearchLogsClamped"] = float(told.clamped)
        for fleet, lost in self._lost(default_fleet).items():
            metrics.setdefault(fleet, {})["SearchLogsLost"] = float(lost)
        return metrics

    def _lost(self, default_fleet: str) -> Counter[str]:
        lost = Counter({fleet: counts.late for fleet, counts in self.fleets.items()})
        lost.update({fleet: told.lost + told.refused for fleet, told in self.machines.items()})
        lost[default_fleet] += sum(map(len, self.left_out.values()))
        return +lost

    def settle(self, message_id: str) -> None:
        """Return if the message is done with; raises MessageRefused or NotStored if not."""
        if message_id in self.refused:
            raise MessageRefused(self.refused[message_id])
        if message_id in self.unstored:
            raise NotStored(self.unstored[message_id])
