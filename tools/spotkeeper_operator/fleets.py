"""Fleet documents in files: validated without AWS, compared with those in force, and applied."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.fleet_documents import OVERRIDES, InForce, judge
from spotkeeper.adapters.regions import RegionTables
from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.domain.decision import FAILED, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Mode
from spotkeeper.ports import Ports
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.check_health import check_health
from spotkeeper_operator.aws import Aws, OperatorError, chosen

# What Parameter Store takes in a standard parameter (PutParameter, Value).
LONGEST = 4096
# Overrides are right or wrong beside any document.
_BOUNDS = {"spot_min": 0, "spot_max": 10_000, "on_demand_max": 10_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that a file changes; `deployed` is None where the fleet is new."""

    setting: str
    deployed: Any
    file: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What files change of a fleet: `parameters` are the texts that differ."""

    fleet: str
    new: bool
    parameters: tuple[str, ...]
    changes: tuple[Change, ...]


def read_files(files: Sequence[Path]) -> dict[str, str]:
    """Read documents by name: `ocr.json`, and `ocr.overrides.json` for what is laid over it.

    Raises `OperatorError` for a file that cannot be read, and for two of one name.
    """
    texts: dict[str, str] = {}
    for file in files:
        name = file.name.removesuffix(".json")
        if name == file.name:
            raise OperatorError(f"{file}: is not called NAME.json or NAME{OVERRIDES}.json")
        if name in texts:
            raise OperatorError(f"{file}: another file has the document {name}, too")
        try:
            texts[name] = file.read_text(encoding="utf-8")
        except OSError as error:
            raise OperatorError(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise OperatorError(f"{file}: is not UTF-8 text: {error.reason}") from error
    return texts


def mistakes_in(texts: Mapping[str, str]) -> list[str]:
    """List every mistake that can be found without AWS."""
    found = [
        f"fleet document {name}: has {size} bytes, at most {LONGEST}"
        for name, text in sorted(texts.items())
        if (size := len(text.encode())) > LONGEST
    ]
    alone = {name.removesuffix(OVERRIDES) for name in texts} - texts.keys()
    beside = {
        name: _dumped({"version": 1, "spot_group": f"{name}.s", "on_demand_group": f"{name}.o",
                       "bounds": _BOUNDS})
        for name in alone
    }  # fmt: skip
    return [*found, *judge({**beside, **texts}, InForce(), None).mistakes.values()]


class Deployed:
    """The fleet documents of a stack, and those of some files beside them."""

    def __init__(self, aws: Aws, stack_name: str, now: datetime) -> None:
        """Read the documents; raises `Gone` where there is no stack."""
        self._aws, self._now, self._stack = aws, now, aws.stack(stack_name)
        self._path, self._ssm = self._stack.documents_path, aws.client("ssm")
        self.texts = aws.document_texts(self._stack)
        self._fleets: Sequence[Fleet] = ()

    def difference(self, files: Mapping[str, str]) -> list[Difference]:
        """Compare files with what is deployed; raises `OperatorError` with every mistake."""
        if wrong := mistakes_in(files):
            raise OperatorError("; ".join(wrong))
        own = self._stack.outputs.get("FleetDocumentName", "").removeprefix(f"{self._path}/")
        if own in files and files[own] != self.texts.get(own):
            raise OperatorError(
                f"{own} is the stack's own document, and the next deployment writes it again: "
                f"put your settings into {own}{OVERRIDES}.json"
            )
        after = judge({**self.texts, **files}, InForce(texts=self.texts), self._now)
        before = {f.name: f for f in InForce(texts=self.texts).fleets(None)}
        named = {name.removesuffix(OVERRIDES) for name in files}
        # Another fleet's mistake stops none of these.
        if wrong := [mistake for name, mistake in after.mistakes.items() if name in named]:
            raise OperatorError("; ".join(wrong))
        self._fleets = [fleet for fleet in after.fleets if fleet.name in named]
        return [
            Difference(
                fleet=fleet.name,
                new=fleet.name not in before,
                parameters=tuple(
                    f"{self._path}/{name}"
                    for name in (fleet.name, f"{fleet.name}{OVERRIDES}")
                    if name in files and files[name] != self.texts.get(name)
                ),
                changes=tuple(_changes(before.get(fleet.name), fleet)),
            )
            for fleet in self._fleets
        ]

    def next_turns(self) -> list[str]:
        """Say what the next turns would request with the settings of the files compared last."""
        ports = _looking(self._aws, self._stack.table, self._stack.nonce, self._now)
        fleets = [replace(fleet, mode=Mode.OBSERVE) for fleet in self._fleets]
        reports = [check(fleets, ports, self._now) for check in (check_health, _availability)]
        return [_next(record) for report in reports for record in report.records]

    def apply(self, files: Mapping[str, str], differences: Sequence[Difference]) -> None:
        """Write the documents that differ; an error names those that are written already.

        Raises `OperatorError` where somebody else wrote one since they were compared.
        """
        written: list[str] = []
        names = {
            p: p.removeprefix(f"{self._path}/") for each in differences for p in each.parameters
        }
        now = self._aws.document_texts(self._stack)
        if theirs := [p for p, name in names.items() if now.get(name) != self.texts.get(name)]:
            raise OperatorError(
                f"changed by somebody else meanwhile: {', '.join(theirs)}: run it again"
            )
        for parameter, name in names.items():
            done = f" (written before: {', '.join(written)})" if written else ""
            with aws_errors(f"writing the fleet document {parameter}{done}"):
                self._ssm.put_parameter(
                    Name=parameter, Value=files[name], Type="String", Overwrite=True
                )
            written.append(parameter)

    def show(self, name: str) -> Mapping[str, Any]:
        """Return every setting of a fleet as it is in force, by section."""
        (fleet,) = chosen(self._aws.documents(self._stack), name)
        return _settings(fleet)


def difference_text(differences: Sequence[Difference]) -> str:
    """List what files change, a setting a line."""
    lines = []
    for each in differences:
        text = "only the text" if each.parameters else "nothing"
        changed = [f"{c.setting}: {_dumped(c.deployed)} -> {_dumped(c.file)}" for c in each.changes]
        lines += [f"{each.fleet}{' (new)' if each.new else ''}"]
        lines += [f"  {line}" for line in changed or [f"{text} differs"]]
    return "\n".join([*lines, ""])


def _next(record: DecisionRecord) -> str:
    turn = f"{record.fleet}: the next {record.controller} turn"
    if record.rule == FAILED:
        return f"{turn} is not known: {record.reason}"
    requests = "; ".join(one.text() for one in record.observed) or "nothing"
    return f"{turn} requests {requests} ({record.reason})"


def _availability(fleets: Sequence[Fleet], ports: Ports, now: datetime) -> Any:
    return check_availability(
        fleets, ports, now, taken=frozenset(g for f in fleets for g in f.groups)
    )


def _settings(fleet: Fleet) -> dict[str, Any]:
    whole = asdict(fleet)
    return {name: value for name, value in whole.items() if name not in ("name", "unused")}


def _changes(before: Fleet | None, after: Fleet) -> Iterator[Change]:
    was, new = dict(_flat(_settings(before))) if before else {}, dict(_flat(_settings(after)))
    for name in sorted(was.keys() | new.keys()):
        if was.get(name) != new.get(name):
            yield Change(setting=name, deployed=was.get(name), file=new.get(name))


def _flat(settings: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value.value if isinstance(value, Enum) else value


def _dumped(value: Any) -> str:
    return json.dumps(value, default=str)


# --- a turn that changes nothing ------------------------------------------------------------------


def _looking(aws: Aws, table: str, nonce: str, now: datetime) -> Ports:
    """Make the ports of a turn that reads what a turn reads, and leaves no trace."""
    sqs, cloudwatch = aws.client("sqs"), aws.cloudwatch
    states: Any = FleetStateTable(aws.dynamodb, table)
    histories: Any = LoadHistoryTable(aws.dynamodb, table)
    wake_ups: Any = SimpleNamespace(at=lambda *_: None)
    regions: Any = RegionTables(aws.region, table, lambda r: aws.client("dynamodb", r))
    # The memory is that of the turns that act; a commit is whole.
    states.acquire = lambda fleet, controller, now, _: states.look(
        fleet.removesuffix("/observed"), controller, now
    )
    states.commit = states.release = states.record = histories.write = lambda *_, **__: True
    regions.write = lambda *_: True
    return Ports(
        groups=AutoScalingReader(aws.autoscaling, aws.ec2, nonce),
        writer=AutoScalingWriter(aws.autoscaling, aws.ec2),
        states=states,
        load=LoadDigestTable(aws.dynamodb, table),
        histories=histories,
        queues=EveryRequestQueue(lambda: sqs, lambda: cloudwatch, aws.dynamodb, table, lambda: now),
        wake_ups=wake_ups,
        regions=regions,
    )
