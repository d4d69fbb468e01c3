"""All input from outside: each kind is validated once, and every wrong field is named."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

_NONE: Mapping[str, str] = MappingProxyType({})


def wrong_fields(error: ValidationError, whole: str, known: Mapping[str, str] = _NONE) -> str:
    """Name every wrong field and what is wrong with it; `whole` names the value itself.

    `known` has the names of fields, each with an example or empty: of a field that does not exist,
    the nearest is proposed.
    """
    errors = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or whole}: {_why(e, known)}" for e in errors)


def _why(error: Mapping[str, Any], known: Mapping[str, str]) -> str:
    name = str(error["loc"][-1]) if error["loc"] else ""
    match error["type"]:
        case "extra_forbidden":
            near = get_close_matches(name, known, n=1)
            return f"is not known here{f': did you mean {near[0]}?' if near else ''}"
        case "string_pattern_mismatch":
            example = f": an example is {known[name]}" if known.get(name) else ""
            return f"does not have the form of this field{example}"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
