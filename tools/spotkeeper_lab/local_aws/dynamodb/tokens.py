"""The words of a DynamoDB expression, one after the other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from spotkeeper_lab.cloud.values import CloudError

MOST_BYTES = 4096
"""Of an expression."""
_TOKEN = re.compile(r"\s*(<=|>=|<>|[=<>(),+\-]|\[\d+\]|[#:]?\w+)")


class NotUnderstood(Exception):
    """An expression that uses more of DynamoDB than is known here: teach it."""


@dataclass(slots=True)
class Tokens:
    """An expression's words, and how far they are read."""

    text: str
    tokens: list[str]
    at: int = 0

    def peek(self) -> str:
        """Give the next word; nothing at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """Read the next word; raises NotUnderstood for another than those expected."""
        token = self.peek()
        if not token or (expected and token.upper() not in expected):
            raise NotUnderstood(f"{self.text!r} at {token!r}")
        self.at += 1
        return token

    def name(self) -> str:
        """Read an attribute's name; raises NotUnderstood for a word that DynamoDB reserves."""
        token = self.take()
        if token.upper() in ReservedKeywords.get_reserved_keywords():
            raise NotUnderstood(f"{self.text!r}: {token} is reserved")
        return token

    def skip(self, token: str) -> bool:
        """Read the next word if it is this one."""
        if self.peek().upper() != token:
            return False
        self.at += 1
        return True


def tokens_of(text: str) -> Tokens:
    """Split an expression; raises NotUnderstood for characters that mean nothing here.

    One that is too long is refused as DynamoDB does it.
    """
    if (size := len(text.encode())) > MOST_BYTES:
        told = "Expression size has exceeded the maximum allowed size; expression size"
        raise CloudError("ValidationException", f"{told}: {size}")
    found = _TOKEN.findall(text)
    if "".join(found) != re.sub(r"\s", "", text):
        raise NotUnderstood(text)
    return Tokens(text, found)


def names_of(text: str) -> Sequence[str]:
    """Read the names of a projection."""
    tokens = tokens_of(text)
    names = [tokens.name()]
    while tokens.skip(","):
        names.append(tokens.name())
    if tokens.peek():
        raise NotUnderstood(text)
    return names
