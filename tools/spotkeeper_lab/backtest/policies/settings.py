"""Settings of policies, as the command line changes them: name=value."""

from collections.abc import Sequence
from dataclasses import replace

from spotkeeper_lab.backtest.policies.values import (
    OF_THE_WORLD,
    Policy,
    SettingError,
    UnknownNameError,
    Value,
)
from spotkeeper_operator.durations import parse_duration


def configure(policies: Sequence[Policy], texts: Sequence[str]) -> tuple[Policy, ...]:
    """The policies with settings changed by ``name=value``, in all that have it, or by
    ``policy.name=value``.

    Raises UnknownNameError for a name that none of the policies has, SettingError for a value that
    is not of the setting's kind.
    """
    changed: dict[str, dict[str, Value]] = {
        policy.name: dict(policy.settings) for policy in policies
    }
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"{text!r} is not a setting; write name=value")
        owner, _, short = name.strip().rpartition(".")
        having = [one for one in policies if short in one.settings and owner in ("", one.name)]
        if short in OF_THE_WORLD and not having:
            raise SettingError(f"{short} is the world's, not a policy's: {OF_THE_WORLD[short]}")
        if not having:
            raise UnknownNameError("setting", name.strip(), _setting_names(policies))
        for policy in having:
            changed[policy.name][short] = _read(short, value.strip(), policy.settings[short])
    configured = tuple(replace(policy, settings=changed[policy.name]) for policy in policies)
    for policy in configured:
        if policy.check:
            policy.check(policy.settings)
    return configured


def _setting_names(policies: Sequence[Policy]) -> set[str]:
    return {
        name
        for policy in policies
        for setting in policy.settings
        for name in (setting, f"{policy.name}.{setting}")
    }


def _read(name: str, text: str, default: Value) -> Value:
    match default:
        case bool():
            return _flag(name, text)
        case int() | float():
            return _number(name, text, whole=isinstance(default, int))
        case str():
            return text


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingError(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _number(name: str, text: str, *, whole: bool) -> float:
    if name.endswith("_s"):
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise SettingError(f"{name}: {error}") from None
        return int(seconds) if whole and seconds.is_integer() else seconds
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {text!r}; it must be {kind}") from None
    if not 0 <= number < float("inf"):
        raise SettingError(f"{name} is {text}; it must be 0 or more")
    return number
