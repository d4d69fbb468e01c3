"""A finding of the doctor, and how severe it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How severe a finding is; the worst one decides the command's exit code.

    `ERROR`: the fleet will not keep its promise. `WARNING`: it will, but not on a bad day.
    `UNKNOWN`: the doctor could not check it, which is never "ok". `NOTE`: nothing is wrong.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem: a stable id, the resource, the evidence, and the fix.

    A line of `fix` that begins with `aws ` or `spotkeeper ` is a command to paste.
    """

    id: str
    severity: Severity
    about: str
    evidence: str
    fix: str


_WORST_FIRST = list(Severity)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings without repeating one: errors, warnings, unknowns, notes; then by resource."""
    once = dict.fromkeys(findings)
    return tuple(sorted(once, key=lambda f: (_WORST_FIRST.index(f.severity), f.about, f.id)))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without findings but notes, 2 with an error, 1 with warnings or unknowns only."""
    severities = {finding.severity for finding in findings} - {Severity.NOTE}
    return 2 if Severity.ERROR in severities else 1 if severities else 0
