"""Findings as text of 80 columns, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from spotkeeper.domain.doctor.finding import Finding, Severity
from spotkeeper_operator.text import labelled, paragraphs


def doctor_text(findings: Sequence[Finding]) -> str:
    """Say what is wrong and how to mend it, the worst first."""
    blocks = [
        [
            f"{finding.severity.upper()}  {finding.id}  {finding.about}",
            *labelled("seen", finding.evidence, hang=9),
            *labelled("fix", finding.fix, hang=9),
        ]
        for finding in findings
    ]
    return paragraphs([*blocks, [_sum(findings)]])


def doctor_json(findings: Sequence[Finding]) -> str:
    """The same for programs."""
    return json.dumps([asdict(finding) for finding in findings], indent=2) + "\n"


def _sum(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing is wrong"
    counts = {s: sum(f.severity is s for f in findings) for s in Severity}
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNKNOWN: "unknown"}
    return ", ".join(_counted(count, words[s]) for s, count in counts.items() if count)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 or word == "unknown" else f"{count} {word}s"
