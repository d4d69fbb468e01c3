"""Fleet documents in SSM Parameter Store, through Powertools' cached parameters.

A mistake in a document never stops what runs: the document that was right last stays in force. The
table has a copy of those in force, also for a process that begins while Parameter Store does not
answer: pk documents, sk copy.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from aws_lambda_powertools.utilities.parameters import SSMProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.table import Items, epoch
from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Mode, Permission
from spotkeeper.ports import FleetError

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

# A document of this name beside a fleet's own is laid over it: no deployment overwrites it.
OVERRIDES = ".overrides"
# A changed document is in force within this; each minute would be a call a minute and function.
CACHE_S = 60
# What was right last stays in force for this long, where a document is wrong or gone.
KEPT_FOR = timedelta(days=7)
TIME = "%Y-%m-%d %H:%M UTC"


class WrongFleetDocument(FleetError):
    """A document of `fleet` that cannot be in force; the other fleets go on."""

    def __init__(self, fleet: str, mistake: str) -> None:
        super().__init__(mistake)
        self.fleet = fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDocuments:
    """The fleets that can be run, an error for each mistake, and the names of all documents."""

    fleets: tuple[Fleet, ...]
    errors: tuple[FleetError, ...]
    names: frozenset[str] = frozenset()

    @property
    def left_out(self) -> tuple[FleetError, ...]:
        """The mistakes of which no earlier document is in force."""
        run = {fleet.name for fleet in self.fleets}
        return tuple(e for e in self.errors if e.fleet not in {None, *run})

    @property
    def groups(self) -> frozenset[str]:
        """The groups of all fleets that can be run."""
        return frozenset(g for fleet in self.fleets for g in fleet.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The documents in force by name, overrides too, and since when fleets' documents are wrong."""

    texts: Mapping[str, str] = field(default_factory=dict)
    wrong_since: Mapping[str, datetime] = field(default_factory=dict)

    def fleets(self, now: datetime | None) -> list[Fleet]:
        """Read the fleets; one whose document has been wrong for `KEPT_FOR` is left out."""
        fleets = []
        for name in sorted(name for name in self.texts if not name.endswith(OVERRIDES)):
            is_over = now and now - self.wrong_since.get(name, now) >= KEPT_FOR
            # An earlier release copied wrong ones, too.
            with contextlib.suppress(FleetDocumentError):
                if not is_over:
                    overrides = self.texts.get(f"{name}{OVERRIDES}")
                    fleets.append(parse_fleet(name, self.texts[name], overrides))
        return fleets

    def without(self, names: set[str]) -> "InForce":
        texts = {n: t for n, t in self.texts.items() if n.removesuffix(OVERRIDES) not in names}
        return replace(self, texts=texts)


class DocumentCopy(Items):
    """The copy in the table."""

    def keep(self, now: InForce) -> bool:
        """Write the copy; one that fails is made by the next read."""
        with contextlib.suppress(FleetError):
            since = {name: epoch(at) for name, at in now.wrong_since.items()}
            doing, texts = "copying the fleet documents", json.dumps(dict(now.texts))
            self._put(doing, "documents", "copy", texts=texts, wrong_since=json.dumps(since))
            return True
        return False

    def read(self) -> InForce | None:
        """Return what was in force last; None where that cannot be read."""
        with contextlib.suppress(FleetError):
            item = self._get("reading the documents' copy", "documents", "copy") or {}
            with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
                since = json.loads(item["wrong_since"]["S"] if "wrong_since" in item else "{}")
                return InForce(
                    texts={str(n): str(t) for n, t in json.loads(item["texts"]["S"]).items()},
                    wrong_since={n: datetime.fromtimestamp(at, UTC) for n, at in since.items()},
                )
            return InForce()
        return None

    def is_stopped(self, fleet: Fleet, now: datetime) -> bool:
        """Say whether a fleet only observes, so that the end of its document ends nothing."""
        with contextlib.suppress(FleetError):
            control = ControlTable(self._dynamodb, self._table).of(fleet.name)
            return control.permission(fleet.mode, now) is Permission.OBSERVE
        return False


class FleetDocumentStore:
    """Reads all documents below one path."""

    def __init__(self, ssm: "SSMClient", path: str, copy: DocumentCopy | None = None) -> None:
        """Take a typed client and the path; nothing is called yet."""
        self._provider = SSMProvider(boto3_client=ssm)
        self._path = path
        self._copy = copy
        self._last: Mapping[str, str] = {}
        self._in_force = InForce()
        self._found: FleetDocuments | None = None
        self._copied: InForce | None = None

    def load(self, now: datetime | None = None, *, copies: bool = False) -> FleetDocuments:
        """Read and validate every document; each mistake becomes an error of its own.

        A fleet whose document is wrong, gone, or names a group of another fleet goes on as it was,
        for `KEPT_FOR`. When no document can be read, those that were read last are in force. With
        `copies`, the table's copy is brought up to date, and one that is gone is forgotten if its
        fleet was stopped. Raises `FleetError` where there is no document at all.
        """
        errors: list[FleetError] = []
        try:
            read = self._read()
            self._last = {name: str(value) for name, value in read.items()}
            is_copied = not (copies and self._copy) or self._copied == self._in_force
            if self._found and self._last == self._in_force.texts and is_copied:
                return self._found
        except FleetError as error:
            if not self._last and self._copy:
                self._last = (self._copy.read() or InForce()).texts
            if not self._last:
                raise
            errors.append(type(error)(f"{error}; those that were read last stay in force"))
        judged = judge(self._last, self._in_force, now)
        if self._copy and (self._copied is None or judged.mistakes):
            # Another function may have seen later documents than this one.
            self._copied = self._copy.read() or self._copied
            known = self._copied or self._in_force
            if copies and now:
                gone = [f for f in known.fleets(now) if f.name not in judged.documents]
                known = known.without({f.name for f in gone if self._copy.is_stopped(f, now)})
            judged = judge(self._last, known, now)
        self._in_force = judged.in_force
        is_new = copies and self._copied not in (None, judged.in_force)
        if self._copy and is_new and self._copy.keep(judged.in_force):
            self._copied = judged.in_force
        errors += [
            WrongFleetDocument(name, f"{mistake}; {judged.follows(name)}")
            for name, mistake in judged.mistakes.items()
        ]
        if not judged.documents:
            message = f"no fleet document under {self._path}: create one (docs/settings.md)"
            errors.append(WrongFleetDocument("", message))
        names = judged.documents.union(f.name for f in judged.fleets)
        documents = FleetDocuments(fleets=judged.fleets, errors=tuple(errors), names=names)
        # A warm function is given the same documents every minute.
        is_copied = self._copied == judged.in_force or not copies or not self._copy
        self._found = documents if is_copied and not errors else None
        return documents

    def _read(self) -> Mapping[str, object]:
        with aws_errors(f"reading the fleet documents under {self._path}"):
            try:
                return self._provider.get_multiple(self._path, max_age=CACHE_S, recursive=True)
            except GetParameterError as error:
                raise error.__context__ or error from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Which fleets can be run, mistakes by fleet, and the names of the documents that are there."""

    fleets: tuple[Fleet, ...]
    mistakes: Mapping[str, str]
    documents: frozenset[str]
    in_force: InForce

    def follows(self, name: str) -> str:
        """Say what turns do about a mistake."""
        if name not in self.in_force.texts:
            return "no turn runs for it"
        since = self.in_force.wrong_since.get(name)
        until = f"until {since + KEPT_FOR:{TIME}}" if since else "for now"
        return f"as it was before, it stays in force {until}"


def judge(read: Mapping[str, str], before: InForce, now: datetime | None) -> Judged:
    """Put into force what is right; instead of a mistake, what was in force before."""
    documents = frozenset(name for name in read if not name.endswith(OVERRIDES))
    known, mistakes = {f.name: f for f in before.fleets(now)}, dict[str, str]()
    fleets: dict[str, Fleet] = {}
    for name in documents:
        try:
            fleets[name] = parse_fleet(name, read[name], read.get(f"{name}{OVERRIDES}"))
        except FleetDocumentError as error:
            mistakes[name] = str(error)
    # A new document that acts on both groups of one that is gone is that fleet by another name.
    heirs = {f.groups for n, f in fleets.items() if n not in known and f.mode is Mode.ACT}
    for name in [n for n, f in known.items() if n not in documents and f.groups not in heirs]:
        mistakes[name] = (
            f"fleet document {name} was deleted: put it back, or run `spotkeeper stop {name}`"
        )
    for name in sorted(n.removesuffix(OVERRIDES) for n in read.keys() - documents):
        if name not in documents | known.keys():
            mistakes[name] = f"{name}{OVERRIDES} overrides no document: there is no {name}"
    fleets |= {name: known[name] for name in mistakes if name in known}
    while clash := _clash(fleets, known):
        group, wrong, holder = clash
        for name in wrong:
            whose = f"fleet {holder} has" if holder else f"{' and '.join(wrong)} name"
            mistakes[name] = f"fleet document {name}: names the group {group}, which {whose}"
            was = known.get(name)
            if was is None or group in was.groups:
                del fleets[name]
            else:
                fleets[name] = was
    kept = mistakes.keys() & fleets.keys()
    since = {n: at for n in kept if (at := before.wrong_since.get(n, now))}
    return Judged(
        fleets=tuple(fleet for _, fleet in sorted(fleets.items())),
        mistakes=dict(sorted(mistakes.items())),
        documents=documents,
        in_force=InForce(
            texts={
                parameter: text
                for name in fleets
                for parameter in (name, f"{name}{OVERRIDES}")
                if (text := (before.texts if name in mistakes else read).get(parameter)) is not None
            },
            wrong_since=since,
        ),
    )


def _clash(
    fleets: Mapping[str, Fleet], known: Mapping[str, Fleet]
) -> tuple[str, Sequence[str], str] | None:
    """Find a group that several fleets name: those that must not, and the one that has it, if any.

    It is the one that had the group before, or the only one that acts.
    """
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for name, fleet in sorted(fleets.items()):
        for group in fleet.groups:
            owners[group].append(name)
    for group, names in sorted(owners.items()):
        if len(names) > 1:
            had = [n for n in names if n in known and group in known[n].groups]
            acts = [n for n in names if fleets[n].mode is Mode.ACT]
            holder = next((users[0] for users in (had, acts) if len(users) == 1), "")
            return group, [n for n in names if n != holder], holder
    return None
