"""What the doctor says: findings, and how bad they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is; the worst one decides the command's exit code.

    `ERROR`: the fleet will not do what it promises. `WARNING`: it will on good days.
    `UNKNOWN`: it could not be looked at, which is never "ok".
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: a stable id, what it is about, what was seen, and how to mend it."""

    id: str
    severity: Severity
    about: str
    evidence: str
    fix: str


def error(id: str, about: str, evidence: str, fix: str) -> Finding:
    """Find what stops the fleet, or will."""
    return Finding(id=id, severity=Severity.ERROR, about=about, evidence=evidence, fix=fix)


def warning(id: str, about: str, evidence: str, fix: str) -> Finding:
    """Find what works worse than it might."""
    return Finding(id=id, severity=Severity.WARNING, about=about, evidence=evidence, fix=fix)


_WORST_FIRST = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.UNKNOWN: 2}


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings, each one once: errors, warnings, what is unknown; then by name."""
    once = dict.fromkeys(findings)
    return tuple(sorted(once, key=lambda f: (_WORST_FIRST[f.severity], f.about, f.id)))


def exit_code(findings: Iterable[Finding]) -> int:
    """Answer 0 for a clean bill, 2 for an error, 1 for warnings and what could not be seen."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return 2
    return 1 if severities else 0
