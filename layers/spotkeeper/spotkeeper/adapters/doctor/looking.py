"""One look at AWS: its answer, or `Unseen` with the action that was denied."""

from collections.abc import Callable, Iterable

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import GRANT, aws_errors
from spotkeeper.domain.doctor.facts import GONE, Unseen
from spotkeeper.ports import FleetError

# How EC2 and IAM say that a launch template, an image or an instance profile does not exist.
GONE_CODES = frozenset({
    "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound", "InvalidLaunchTemplateName.NotFoundException",
    "NoSuchEntity",
})  # fmt: skip


def look[T](action: str, call: Callable[[], T]) -> T | Unseen:
    """Answer what a call answers; what AWS refuses or does not answer is `Unseen`."""
    try:
        with aws_errors(action):
            return call()
    except FleetError as error:
        why = str(error).removeprefix(f"{action}: ").removesuffix(GRANT)
        cause = error.__cause__
        code = cause.response["Error"]["Code"] if isinstance(cause, ClientError) else ""
        kind = GONE if code in GONE_CODES else type(error).__name__
        return Unseen(action=action, why=f"{kind}: {why}")


def all_or_unseen[T](parts: Iterable[T | Unseen]) -> list[T] | Unseen:
    """Answer every part, or the first that could not be seen."""
    seen: list[T] = []
    for part in parts:
        if isinstance(part, Unseen):
            return part
        seen.append(part)
    return seen
