"""The live page: fleets, their instances and their decisions as they fall, from the ports.

`page.html` asks for `state.json` again and again; `picture` is what it contains. The lab adds a
part `lab` with orders to give. The page of a real stack has the fleet's `status` and charts.
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
    return {"fleets": [fleet_picture(one, found, decisions(one.name), {}) for one in fleets]}


def fleet_picture(
    fleet: Fleet,
    groups: Mapping[str, Group],
    decisions: Sequence[DecisionRecord],
    why: Mapping[str, str],
) -> dict[str, object]:
    """What the page shows of one fleet; `why` says of instances why they count or not."""
    kinds = {"spot": fleet.spot_group, "on-demand": fleet.on_demand_group}
    return {
        "name": fleet.name,
        "groups": [_group(kind, name, groups.get(name), why) for kind, name in kinds.items()],
        "decisions": [_decision(record) for record in decisions[:DECISIONS_SHOWN]],
    }


def _group(kind: str, name: str, group: Group | None, why: Mapping[str, str]) -> dict[str, object]:
    return {
        "kind": kind,
        "name": name,
        "desired": group.desired if group else None,
        "instances": [_instance(one, why) for one in group.instances] if group else [],
    }


def _instance(instance: Instance, why: Mapping[str, str]) -> dict[str, object]:
    return {
        **({"why": why[instance.instance_id]} if instance.instance_id in why else {}),
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
        "asked": [o.asked for o in record.outcomes if not o.error and not o.would],
    }
