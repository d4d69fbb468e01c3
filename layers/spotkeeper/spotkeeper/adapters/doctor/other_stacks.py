"""Which groups other stacks of Spotkeeper name, by all fleet documents of account and region."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from spotkeeper.adapters.fleet_documents import OVERRIDES
from spotkeeper.adapters.stacks import DOCUMENTS_ROOT

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

_DOCUMENT = re.compile(rf"{DOCUMENTS_ROOT}/[^/]+/fleets/[^/]+")


def groups_elsewhere(ssm: "SSMClient", own_path: str | None) -> Mapping[str, tuple[str, ...]]:
    """Answer the documents, by parameter, that name each group, without those below `own_path`."""
    documents: defaultdict[str, dict[str, object]] = defaultdict(dict)
    # Sorted, a document comes before what is laid over it.
    for name, text in sorted(_documents(ssm)):
        if name.rpartition("/")[0] != own_path:
            documents[name.removesuffix(OVERRIDES)] |= _object(text)
    named: defaultdict[str, list[str]] = defaultdict(list)
    for name, document in documents.items():
        for group in (document.get("spot_group"), document.get("on_demand_group")):
            if isinstance(group, str):
                named[group].append(name)
    return {group: tuple(names) for group, names in named.items()}


def _documents(ssm: "SSMClient") -> Iterator[tuple[str, str]]:
    pages = ssm.get_paginator("get_parameters_by_path")
    for page in pages.paginate(Path=DOCUMENTS_ROOT, Recursive=True):
        for parameter in page["Parameters"]:
            if _DOCUMENT.fullmatch(parameter["Name"]):
                yield parameter["Name"], parameter["Value"]


def _object(text: str) -> dict[str, object]:
    """Read a document without validating it: another stack may be of another release."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
