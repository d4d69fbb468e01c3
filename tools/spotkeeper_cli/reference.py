"""The command reference, docs/commands.md, from the commands themselves: `make reference`."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

from spotkeeper_cli.main import app

HEAD = """# Commands

`make reference` generates this page; `spotkeeper COMMAND --help` shows the same. Durations are
`90s`, `20m`, `2h`, `7d` or seconds. Times without a zone are UTC.

| exit code | means |
|---|---|
| 0 | success |
| 1 | the answer shows a problem; for `doctor`, warnings or facts that it could not read |
| 2 | wrong usage, or something that the command needs is missing; for `doctor`, errors |
"""


def reference() -> str:
    """The page's text."""
    commands = _commands(typer.main.get_command(app), "spotkeeper")
    return HEAD + "".join(_section(name, command) for name, command in commands)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None or command.invoke_without_command:
        yield name, command
    for each, below in sorted((inner or {}).items()):
        yield from _commands(below, f"{name} {each}")


def _section(name: str, command: Any) -> str:
    usage, rows = name, ""
    for argument in (each for each in command.params if each.param_type_name == "argument"):
        shown = argument.metavar or argument.name.upper()
        usage += f" {shown}" if argument.required else f" [{shown}]"
    context = command.make_context(name, [], resilient_parsing=True)
    for option in (
        each for each in command.params if each.param_type_name == "option" and not each.hidden
    ):
        names = ", ".join([*option.opts, *option.secondary_opts])
        kind = re.sub(r"list\[(\w+)\]| range", r"\1", option.display_type(context)).lower()
        names += "" if option.is_flag else f" {option.metavar or kind}"
        parts = [_prose(option.help)]
        if option.required:
            parts.append("Required.")
        elif option.default not in (None, False, (), []) and not option.is_flag:
            parts.append(f"Default: {_default_of(option)}.")
        if option.envvar:
            parts.append(f"Or `{option.envvar}`.")
        cells = [each.replace("|", "\\|") for each in (names, " ".join(filter(None, parts)))]
        rows += f"| `{cells[0]}` | {cells[1]} |\n"
    text = f"\n## {name}\n\n    {usage}{' [OPTIONS]' if rows else ''}\n\n{_prose(command.help)}\n"
    return f"{text}\n| option | meaning |\n|---|---|\n{rows}" if rows else text


def _default_of(option: Any) -> str:
    """A default as one would type it."""
    value = option.show_default if isinstance(option.show_default, str) else option.default
    return f"{value:g}" if isinstance(value, float) else str(value)


def _prose(text: str | None) -> str:
    """Help as it is written in the code, its lines joined, its paragraphs kept."""
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    sys.stdout.write(reference())
