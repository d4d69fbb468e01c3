"""All input from outside: each kind is validated once, and every wrong field is named."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

_NONE: Mapping[str, str] = MappingProxyType({})


def wrong_fields(error: ValidationError, whole: str, known: Mapping[str, str] = _NONE) -> str:
    """Name every wrong field and what is wrong with it; `whole` names the value itself.

    `known` has the fields, such as bounds.spot_max, each with an example or empty: of a field that
    does not exist, the nearest is proposed.
    """
    errors = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or whole}: {_why(e, known)}" for e in errors)


# What pydantic requires, in words: JSON written by hand has quotes and units around numbers.
_MUST_BE = {
    "int_type": "must be a whole number, without quotes or a unit",
    "float_type": "must be a number, without quotes or a unit",
    "bool_type": "must be true or false, without quotes",
}


def _why(error: Mapping[str, Any], known: Mapping[str, str]) -> str:
    path = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "extra_forbidden":
            called = {each.rpartition(".")[2]: each for each in known}
            near = get_close_matches(path.rpartition(".")[2].lower(), called, n=1)
            return f"is not known here{f': did you mean {called[near[0]]}?' if near else ''}"
        case "string_pattern_mismatch":
            example = f": an example is {known[path]}" if known.get(path) else ""
            return f"does not have the form of this field{example}"
        case kind:
            text = str(error["msg"]).removeprefix("Value error, ")
            return _MUST_BE.get(kind, text.replace("Input should be", "must be"))
