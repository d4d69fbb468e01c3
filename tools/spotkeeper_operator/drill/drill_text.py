"""A drill as text, as JSON, and as lines while it goes on."""

from collections.abc import Callable
from dataclasses import asdict

from spotkeeper_operator.drill.run_drill import Drilled
from spotkeeper_operator.drill.story import Service, Story
from spotkeeper_operator.text import as_json, labelled, paragraphs

STEPS = (
    ("warned", "warned", "a turn knows of the warning"),
    ("asked", "asked", "a replacement is requested"),
    ("gone", "gone", "the interrupted have ended"),
    ("whole", "whole", "as much serves as before, without them"),
    ("back", "back on spot", "spot alone serves as much, and what stood in is gone"),
)


def drill_text(drilled: Drilled) -> str:
    """Tell when what happened, counted from the start, and what users noticed."""
    story = drilled.story
    head = [f"{story.fleet}  {story.started:%Y-%m-%d %H:%M:%S} UTC"]
    head += labelled("interrupted", ", ".join(story.instances), indent=0)
    steps = [line for name, label, what in STEPS for line in _step(story, name, label, what)]
    return paragraphs([head, steps, labelled("requests", noticed(drilled), indent=0)])


def drill_json(drilled: Drilled) -> str:
    """The same for programs; instants in RFC 3339, and seconds from the start by their names."""
    story = drilled.story
    seconds = {name: after_s(story, name) for name, _, _ in STEPS}
    whole = asdict(story) | {
        "after_s": seconds,
        "complete": story.over,
        "promised_wait_s": drilled.promised_s,
        "service": asdict(drilled.service),
    }
    return as_json(whole)


def telling(say: Callable[[str], None]) -> Callable[[Story], None]:
    """Make what says each step once, as soon as it has happened."""
    said: set[str] = set()

    def tell(story: Story) -> None:
        if not said:
            say(f"interrupting {', '.join(story.instances)}")
            said.add("")
        for name, label, _ in STEPS:
            after = after_s(story, name)
            if after is not None and name not in said:
                said.add(name)
                say(f"{after:6.0f} s  {label}")

    return tell


def _step(story: Story, name: str, label: str, what: str) -> list[str]:
    after = after_s(story, name)
    if after is None:
        return labelled(label, f"NOT SEEN: {what}", indent=0)
    return labelled(label, f"after {after:.0f} s: {what}", indent=0)


def after_s(story: Story, name: str) -> float | None:
    """Say how long after the start a step happened, s; None where it did not."""
    at = getattr(story, name)
    return None if at is None else (at - story.started).total_seconds()


def noticed(drilled: Drilled) -> str:
    """Say what users noticed."""
    found: Service = drilled.service
    if not found.requests:
        return "none were logged"
    late = "nothing is promised about waiting"
    if found.late is not None:
        late = f"{found.late} later than the {drilled.promised_s:g} s promised"
    told = f"{found.requests} logged, {late}, {found.failed} failed"
    return f"{told}; longest wait {found.longest_s:.1f} s"
