"""The part of DynamoDB's expressions that the product uses, compiled to functions of an item.

moto has the whole of them, at a millisecond and more a call; most of a day's calls are these. The
contract tests of the states and of the load table hold both to the same promises.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from spotkeeper_lab.local_aws.dynamodb.tokens import NotUnderstood, Tokens, tokens_of

type Value = Any
type Item = dict[str, Value]
type _Names = Mapping[str, str]
type _Values = Mapping[str, Value]
type _Term = Callable[[Item, _Names, _Values], Value]

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def number_or_text(value: Value) -> Value:
    """What is compared of an attribute value."""
    if isinstance(value, dict) and "N" in value:
        return float(value["N"])
    if isinstance(value, dict) and "S" in value:
        return value["S"]
    return value


@cache
def condition(text: str) -> Callable[[Item, _Names, _Values], bool]:
    """Compile a condition."""
    tokens = tokens_of(text)
    test = _either(tokens)
    if tokens.peek():
        raise NotUnderstood(text)
    return test


def _either(tokens: Tokens) -> Callable[[Item, _Names, _Values], bool]:
    tests = [_both(tokens)]
    while tokens.skip("OR"):
        tests.append(_both(tokens))
    return lambda item, names, values: any(test(item, names, values) for test in tests)


def _both(tokens: Tokens) -> Callable[[Item, _Names, _Values], bool]:
    tests = [_single(tokens)]
    while tokens.skip("AND"):
        tests.append(_single(tokens))
    return lambda item, names, values: all(test(item, names, values) for test in tests)


def _single(tokens: Tokens) -> Callable[[Item, _Names, _Values], bool]:
    if tokens.skip("NOT"):
        inner = _single(tokens)
        return lambda item, names, values: not inner(item, names, values)
    if tokens.skip("("):
        inner = _either(tokens)
        tokens.take(")")
        return inner
    word = tokens.peek().lower()
    if word in ("attribute_exists", "attribute_not_exists"):
        tokens.take()
        tokens.take("(")
        path = tokens.name()
        tokens.take(")")
        there = word == "attribute_exists"
        return lambda item, names, _: (names.get(path, path) in item) is there
    if word == "begins_with":
        return _beginning(tokens)
    left = _operand(tokens)
    if tokens.skip("BETWEEN"):
        low = _operand(tokens)
        tokens.take("AND")
        high = _operand(tokens)
        return lambda i, n, v: bool(low(i, n, v) <= left(i, n, v) <= high(i, n, v))
    compare = _COMPARED[tokens.take(*_COMPARED)]
    right = _operand(tokens)

    def test(item: Item, names: _Names, values: _Values) -> bool:
        a, b = left(item, names, values), right(item, names, values)
        return a is not None and b is not None and compare(a, b)

    return test


def _beginning(tokens: Tokens) -> Callable[[Item, _Names, _Values], bool]:
    tokens.take()
    tokens.take("(")
    whole = _operand(tokens)
    tokens.take(",")
    beginning = _operand(tokens)
    tokens.take(")")
    return lambda i, n, v: str(whole(i, n, v) or "").startswith(beginning(i, n, v))


def _operand(tokens: Tokens) -> _Term:
    if tokens.peek().lower() == "size":
        tokens.take()
        tokens.take("(")
        inner = _term(tokens)
        tokens.take(")")

        def size(item: Item, names: _Names, values: _Values) -> Value:
            value = inner(item, names, values)
            return None if value is None else len(next(iter(value.values())))

        return size
    term = _term(tokens)
    return lambda item, names, values: number_or_text(term(item, names, values))


def _term(tokens: Tokens) -> _Term:
    if tokens.peek().startswith(":"):
        value = tokens.take()
        return lambda _, __, values: values[value]
    if tokens.peek().lower() not in ("list_append", "if_not_exists"):
        name = tokens.name()
        return lambda item, names, _: item.get(names.get(name, name))
    function = tokens.take().lower()
    tokens.take("(")
    first = _term(tokens)
    tokens.take(",")
    second = _term(tokens)
    tokens.take(")")
    return (_appended if function == "list_append" else _or)(first, second)


def _appended(first: _Term, second: _Term) -> _Term:
    return lambda i, n, v: {"L": [*first(i, n, v)["L"], *second(i, n, v)["L"]]}


def _or(first: _Term, second: _Term) -> _Term:
    def either(item: Item, names: _Names, values: _Values) -> Value:
        value = first(item, names, values)
        return second(item, names, values) if value is None else value

    return either


@cache
def update(text: str) -> Callable[[Item, _Names, _Values], Item]:
    """Compile an update; it answers a new item and reads only the old one."""
    tokens = tokens_of(text)
    sets: list[tuple[str, _Term]] = []
    removed: list[tuple[str, int | None]] = []
    while tokens.peek():
        if tokens.take("SET", "REMOVE").upper() == "SET":
            sets += _list(tokens, _assignment)
        else:
            removed += _list(tokens, _removal)

    def changed(item: Item, names: _Names, values: _Values) -> Item:
        new = dict(item)
        for path, term in sets:
            new[names.get(path, path)] = term(item, names, values)
        for path, _ in [one for one in removed if one[1] is None]:
            new.pop(names.get(path, path), None)
        for path in {path for path, at in removed if at is not None}:
            name = names.get(path, path)
            gone = {at for other, at in removed if other == path}
            kept = [one for at, one in enumerate(item[name]["L"]) if at not in gone]
            new[name] = {"L": kept}
        return new

    return changed


def _list[T](tokens: Tokens, read: Callable[[Tokens], T]) -> list[T]:
    found = [read(tokens)]
    while tokens.skip(","):
        found.append(read(tokens))
    return found


def _assignment(tokens: Tokens) -> tuple[str, _Term]:
    path = tokens.name()
    tokens.take("=")
    return path, _term(tokens)


def _removal(tokens: Tokens) -> tuple[str, int | None]:
    path = tokens.name()
    if tokens.peek().startswith("["):
        return path, int(tokens.take()[1:-1])
    return path, None
