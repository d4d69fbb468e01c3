"""Mode, pause and resume: what an operator decides for a fleet."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import FAILED, Controller
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import LONGEST_PAUSE, Control, Mode, Pause, Permission
from spotkeeper_operator.aws import CONFIG, Aws, OperatorError, chosen
from spotkeeper_operator.durations import STALE_TURN_S, spoken

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack


# Records in which the newest turns of both controllers are found, also while turns fail.
RECENT = 40


class FleetControls:
    """The controls of a stack's fleets, changed in the name of who runs the command."""

    def __init__(self, aws: Aws, stack_name: str) -> None:
        """Look the stack up; raises `Gone` when there is none of that name."""
        self._aws = aws
        self.stack: Stack = aws.stack(stack_name)
        self._documents = aws.documents(self.stack)
        self._table = ControlTable(aws.dynamodb, self.stack.table)

    def fleet(self, name: str) -> Fleet:
        """Find a fleet; raises `OperatorError` for an unknown one."""
        (found,) = chosen(self._documents, name)
        return found

    def only_observes(self, name: str, now: datetime) -> bool:
        """Say whether a fleet's turns ask nothing anyway, a pause aside."""
        control = replace(self._table.of(name), pause=None)
        return control.permission(self.fleet(name).mode, now) is Permission.OBSERVE

    def preview(self, name: str, now: datetime) -> list[str]:
        """List what the newest turns of a fleet that does not act would have asked AWS for."""
        records = self._aws.records(self.stack).newest(self.fleet(name).name, RECENT)
        lines: list[str] = []
        for controller in Controller:
            turns = (r for r in records.of(controller) if r.rule != FAILED)
            turn = next(turns, None)
            age_s = (now - turn.at).total_seconds() if turn else 0.0
            if turn is None or age_s > STALE_TURN_S:
                since = f"for {spoken(age_s)}" if turn else "yet"
                lines.append(f"{controller}: not known, no turn has worked {since}")
                continue
            wishes = [outcome.asked for outcome in turn.outcomes if outcome.would] or ["nothing"]
            lines += [f"{controller} ({spoken(age_s)} ago): {wish}" for wish in wishes]
        return lines

    def set_mode(self, name: str, mode: Mode, now: datetime) -> Control:
        """Let a fleet's turns act, or only observe."""
        seen = self._table.of(self.fleet(name).name)
        wanted = replace(seen, mode=mode, mode_by=self._who(), mode_at=now)
        return self._table.change(name, seen, wanted)

    def pause(self, name: str, lasting: timedelta, why: str, now: datetime) -> Control:
        """Pause a fleet's turns for a time; raises `OperatorError` for none, or more than a day."""
        if not timedelta() < lasting <= LONGEST_PAUSE:
            raise OperatorError("a pause lasts longer than nothing and at most 24h: give --for")
        if not why.strip():
            raise OperatorError("give --why: status shows it while the fleet is paused")
        # The bytes of an argument that is no text arrive as halves of characters.
        why.encode()
        seen = self._table.of(self.fleet(name).name)
        pause = Pause(until=now + lasting, why=why.strip(), by=self._who(), at=now)
        return self._table.change(name, seen, replace(seen, pause=pause))

    def require_paused(self, name: str, now: datetime) -> Control:
        """Read the control of a fleet that is paused; raises `OperatorError` for another one."""
        seen = self._table.of(self.fleet(name).name)
        if seen.pause is None or seen.pause.until <= now:
            raise OperatorError(f"{name} is not paused")
        return seen

    def resume(self, name: str, now: datetime) -> Control:
        """End a pause; raises `OperatorError` when there is none."""
        seen = self.require_paused(name, now)
        return self._table.change(name, seen, replace(seen, pause=None))

    def _who(self) -> str:
        with aws_errors("sts:GetCallerIdentity"):
            client = self._aws.session.client("sts", config=CONFIG)
            return client.get_caller_identity()["Arn"]
