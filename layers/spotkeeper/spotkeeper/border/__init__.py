"""All input from outside: each kind is validated once, and every wrong field is named."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError


def wrong_fields(error: ValidationError, whole: str, known: Collection[str] = ()) -> str:
    """Name every wrong field and what is wrong with it; `whole` names the value itself.

    Of a field that does not exist, the nearest of the `known` names is proposed.
    """
    errors = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or whole}: {_why(e, known)}" for e in errors)


def _why(error: Mapping[str, Any], known: Collection[str]) -> str:
    match error["type"]:
        case "extra_forbidden":
            near = get_close_matches(str(error["loc"][-1]), known, n=1)
            return f"is not known here{f': did you mean {near[0]}?' if near else ''}"
        case "string_pattern_mismatch":
            return "does not have the form of this field"
        case _:
            return str(error["msg"])
