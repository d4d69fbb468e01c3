"""The live page: fleets, their instances and their decisions as they fall, from the ports.

`page.html` asks for `state.json` again and again; `picture` is what stands in it. Who serves both
may add a part `lab` with orders to give; a real stack has none.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.fleet import Fleet, Group, Instance
from spotkeeper.ports import GroupReader

DECISIONS_SHOWN = 40

type Decisions = Callable[[str], Sequence[DecisionRecord]]
"""The newest decisions of a fleet by its name, newest first."""


def html() -> str:
    """The page itself; it needs nothing from elsewhere."""
    return Path(__file__).with_name("page.html").read_text()


def picture(
    fleets: Sequence[Fleet], groups: GroupReader, decisions: Decisions
) -> dict[str, object]:
    """What the page shows of fleets; raises what the ports raise."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    found = groups.describe(names) if names else {}
    return {"fleets": [_fleet(fleet, found, decisions(fleet.name)) for fleet in fleets]}


def _fleet(
    fleet: Fleet, groups: Mapping[str, Group], decisions: Sequence[DecisionRecord]
) -> dict[str, object]:
    kinds = {"spot": fleet.spot_group, "on-demand": fleet.on_demand_group}
    return {
        "name": fleet.name,
        "groups": [_group(kind, name, groups.get(name)) for kind, name in kinds.items()],
        "decisions": [_decision(record) for record in decisions[:DECISIONS_SHOWN]],
    }


def _group(kind: str, name: str, group: Group | None) -> dict[str, object]:
    return {
        "kind": kind,
        "name": name,
        "desired": group.desired if group else None,
        "instances": [_instance(one) for one in group.instances] if group else [],
    }


def _instance(instance: Instance) -> dict[str, object]:
    return {
        "id": instance.instance_id,
        "pool": instance.pool,
        "phase": instance.phase if instance.healthy else "unhealthy",
    }


def _decision(record: DecisionRecord) -> dict[str, object]:
    return {
        "at": record.at.isoformat(timespec="seconds"),
        "controller": record.controller,
        "action": record.action,
        "rule": record.rule,
        "reason": record.reason,
    }
