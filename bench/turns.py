"""The functions at work on moto: calls of AWS a turn, processor time, metrics and log bytes.

A fleet of 50 workers under 100 requests/s. moto's own work is within the processor time, which so
is an upper bound.
"""

from dataclasses import dataclass
from functools import cache

from rich.console import Console
from rich.table import Table

from bench._stack import BATCHES, SHIPPED_EVERY_S, START, Turn, bench

# The table: the control and the memories are read, the lease is taken and given back, a memory and
# the record are written.
LIMITS = {"EC2 and Auto Scaling": 5, "table": 6}
QUIET_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A quiet turn of each function, and the sizes of what it leaves in the table in KiB.

    `items` are those of the load, for each batch of messages.
    """

    turns: dict[str, Turn]
    memory_kib: float
    record_kib: float
    items: float
    item_kib: float
    ledger_kib: float


@cache
def measure() -> Work:
    """Run ten quiet minutes; keep the cheapest turn of each function, as cold ones are rare.

    Once a process: the functions stay warm, and what they remember is of the table that they met.
    """
    runs: dict[str, list[Turn]] = {}
    with bench() as stack:
        for minute in range(10, 10 + QUIET_TURNS):
            for ten_s in range(6):
                stack.cloud.advance(60 * minute + 10 * ten_s + SHIPPED_EVERY_S)
                shipped = stack.ship(60 * minute + 10 * ten_s)
                runs.setdefault("collect_search_logs", []).append(shipped)
            for name, event in _checks():
                runs.setdefault(name, []).append(stack.invoke(name, event))
        return Work(
            turns={name: _settled(turns) for name, turns in runs.items()},
            memory_kib=stack.item_kib("fleet#ocr", "memory#"),
            record_kib=stack.item_kib("fleet#ocr", "decision#"),
            items=stack.items("load#ocr", "2") / (len(runs["collect_search_logs"]) * BATCHES),
            item_kib=stack.item_kib("load#ocr", "2"),
            ledger_kib=stack.item_kib("ledger#ocr", "open#"),
        )


def _checks() -> list[tuple[str, dict[str, object]]]:
    event: dict[str, object] = {
        "source": "aws.autoscaling",
        "detail-type": "EC2 Instance Launch Successful",
        "account": "123456789012",
        "time": START.isoformat(),
        "detail": {"AutoScalingGroupName": "ocr-spot", "EC2InstanceId": f"i-{1:017x}"},
    }
    return [
        ("check_availability", {}), ("check_health", {}), ("handle_interruption", event),
        ("keep_ledger", {}),
    ]  # fmt: skip


def _settled(turns: list[Turn]) -> Turn:
    """The last turn, with the least processor time of all."""
    last = turns[-1]
    last.cpu_s = min(turn.cpu_s for turn in turns)
    return last


def table(work: Work) -> Table:
    """Calls a turn beside their limits."""
    shown = Table("a quiet turn of", *LIMITS, "parameters", "ms of a core", title="Calls of AWS")
    for name, turn in work.turns.items():
        cells = []
        for kind, limit in LIMITS.items():
            missed = name == "check_availability" and turn.calls[kind] > limit
            cells.append(f"[red]{turn.calls[kind]}[/]" if missed else f"{turn.calls[kind]}")
        shown.add_row(name, *cells, f"{turn.calls['parameters']}", f"{1000 * turn.cpu_s:.0f}")
    limits = ", ".join(f"{limit} {kind}" for kind, limit in LIMITS.items())
    shown.caption = f"limits of check_availability: {limits}; moto's own work is in the time"
    return shown


def main() -> None:
    """Print the calls."""
    Console().print(table(measure()))


if __name__ == "__main__":
    main()
