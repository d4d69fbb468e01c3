"""Mode, pause and resume: what an operator says of a fleet."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import LONGEST_PAUSE, Control, Mode, Pause, Permission
from spotkeeper_operator.aws import CONFIG, Aws, OperatorError, chosen

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack


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

    def resume(self, name: str, now: datetime) -> Control:
        """End a pause; raises `OperatorError` when there is none."""
        seen = self._table.of(self.fleet(name).name)
        if seen.pause is None or seen.pause.until <= now:
            raise OperatorError(f"{name} is not paused")
        return self._table.change(name, seen, replace(seen, pause=None))

    def _who(self) -> str:
        with aws_errors("sts:GetCallerIdentity"):
            client = self._aws.session.client("sts", config=CONFIG)
            return client.get_caller_identity()["Arn"]
