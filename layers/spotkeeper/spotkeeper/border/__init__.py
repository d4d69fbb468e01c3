"""All input from outside: each kind is validated once, and every wrong field is named."""

from pydantic import ValidationError


def wrong_fields(error: ValidationError, whole: str) -> str:
    """Name every wrong field and what is wrong with it; `whole` names the value itself."""
    errors = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or whole}: {e['msg']}" for e in errors)
