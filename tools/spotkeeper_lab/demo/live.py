"""How far a demo has come: a bar and a line of the fleet, or a plain line every virtual hour."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from spotkeeper_lab.end_to_end.day import Day
from spotkeeper_lab.end_to_end.record import Look
from spotkeeper_lab.end_to_end.scene import LEAD_S

PLAIN_EVERY_S = 3600.0


@contextmanager
def progress(console: Console, day: Day) -> Iterator[Callable[[Look], None]]:
    """What to call with the fleet after every virtual minute."""
    if not console.is_terminal:
        yield _plain(console, day)
        return
    bar = Progress(
        TextColumn("virtual day"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    task = bar.add_task("", total=day.scene.end_s)
    with Live(bar, console=console, refresh_per_second=8) as live:

        def show(look: Look) -> None:
            bar.update(task, completed=look.at_s)
            live.update(Group(Text(line(day, look)), bar))

        yield show


def line(day: Day, look: Look) -> str:
    """The fleet in one line."""
    return (
        f"{day.time.at(look.at_s):%a %H:%M}  target {look.target}  spot {look.spot}  "
        f"on-demand {look.on_demand}  busy {day.force.busy} of {look.workers}  "
        f"queue {day.force.queued}  warnings {len(day.record.notices)}"
    )


def _plain(console: Console, day: Day) -> Callable[[Look], None]:
    due_s = LEAD_S

    def show(look: Look) -> None:
        nonlocal due_s
        if look.at_s >= due_s:
            console.print(line(day, look), highlight=False, soft_wrap=True)
            due_s += PLAIN_EVERY_S

    return show
