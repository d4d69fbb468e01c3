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
    # Where one of several forms is required, pydantic names each beside the field: `literal[...]`.
    paths = [".".join(str(part) for part in e["loc"] if "[" not in str(part)) for e in errors]
    return "; ".join(
        f"{path or whole}: {_why(each, path, known)}"
        for path, each in zip(paths, errors, strict=True)
    )


# What pydantic requires, in words: JSON written by hand has quotes and units around numbers.
_MUST_BE = {
    "missing": "is missing",
    "int_type": "must be a whole number, without quotes or a unit",
    "float_type": "must be a number, without quotes or a unit",
    "bool_type": "must be true or false, without quotes",
    "string_type": "must be a text in quotes",
    "list_type": "must be a list in brackets",
    "too_short": "must not be empty",
}


def _why(error: Mapping[str, Any], path: str, known: Mapping[str, str]) -> str:
    match error["type"]:
        case "extra_forbidden":
            if path in known and "." in path:
                return f"is not known here: {path.partition('.')[0]} is an object"
            called = {each.rpartition(".")[2]: each for each in known}
            near = get_close_matches(path.rpartition(".")[2].lower(), called, n=1)
            return f"is not known here{f': did you mean {called[near[0]]}?' if near else ''}"
        case "string_pattern_mismatch":
            # The entries of a list or an object have the example of the whole.
            named = known.get(path) or known.get(path.rpartition(".")[0])
            example = f": an example is {named}" if named else ""
            return f"does not have the form of this field{example}"
        case kind:
            text = str(error["msg"]).removeprefix("Value error, ")
            return _MUST_BE.get(kind, text.replace("Input should be", "must be"))
