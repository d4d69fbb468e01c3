"""A drill as the page that the demo has: its steps, and the turns that took them."""

from datetime import timedelta

from spotkeeper_charts.page import Figure, Page, Row, Table, Tiles
from spotkeeper_operator.decisions.explain import timeline
from spotkeeper_operator.decisions.records_page import decided, records_timeline
from spotkeeper_operator.drill.drill_text import STEPS, after_s, noticed
from spotkeeper_operator.drill.run_drill import Drilled

# What came before is in the picture, too.
LEAD = timedelta(minutes=2)


def drill_page(drilled: Drilled) -> Page:
    """What a drill's page shows; times are UTC."""
    story = drilled.story
    first = story.started - LEAD
    last = max([story.started + LEAD, *(record.at for record in drilled.records)])
    records = sorted(drilled.records, key=lambda record: record.at)
    steps = [(label, after_s(story, name), what) for name, label, what in STEPS]
    return Page(
        title=f"A drill of {story.fleet}",
        subtitle=f"{', '.join(story.instances)} interrupted at "
        f"{story.started:%Y-%m-%d %H:%M:%S} UTC. {noticed(drilled)}",
        footer="Written by spotkeeper drill.",
        blocks=[
            Tiles(
                [
                    Figure(
                        label=label,
                        value="not seen" if after is None else f"{after:.0f} s",
                        meaning=what,
                    )
                    for label, after, what in steps
                ]
            ),
            records_timeline(records, first, last),
            Table(
                caption="What happened",
                columns=("after", "what"),
                rows=[
                    Row(cells=(f"{after:.0f} s", what), at_s=after + LEAD.total_seconds())
                    for _, after, what in steps
                    if after is not None
                ],
            ),
            decided(timeline(records), first),
        ],
    )
