"""Sections of a document, made of dataclasses whose fields are settings.

A dataclass of the domain says type, default, bounds and meaning of each setting once; here it
becomes a pydantic model that refuses what is wrong.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, create_model, model_validator

from spotkeeper.domain.settings.setting import Setting


class Section(BaseModel):
    """A section that knows all of its fields; the settings of earlier releases are passed over.

    `renamed` maps the earlier names of settings to those of today, which go before them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    retired: ClassVar[frozenset[str]] = frozenset()
    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _in_todays_words(cls, section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        earlier = {cls.renamed[name]: section[name] for name in section if name in cls.renamed}
        known = {
            name: value
            for name, value in section.items()
            if name not in cls.retired and name not in cls.renamed
        }
        return earlier | known


def section(cls: type, base: type[Section] = Section, **more: Any) -> type[Section]:
    """Make the model of a dataclass's settings; `more` are fields of the document alone.

    Of a field that is a dataclass, `more` has the model.
    """
    made: Any = {field.name: _field(field, setting) for field, setting in settings_of(cls)}
    return create_model(f"{cls.__name__}Section", __base__=base, **(more | made))


def settings_of(cls: type) -> Iterator[tuple[Field[Any], Setting]]:
    """Return the fields of a dataclass that are settings."""
    return ((field, field.metadata["setting"]) for field in fields(cls) if field.metadata)


def default_of(field: Field[Any]) -> Any:
    """Return a setting's default as a document writes it; ... if the document must set it."""
    if field.default is MISSING:
        return ...
    return field.default.value if isinstance(field.default, Enum) else field.default


def _field(field: Field[Any], setting: Setting) -> tuple[Any, Any]:
    """Make a model's field of a setting; a choice is one of its words."""
    bounds = {"ge": setting.least, "gt": setting.above, "le": setting.most}
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    if setting.pattern:
        given["pattern"] = setting.pattern
    kind: Any = field.type
    # X of X | None, and everything else as it is.
    mine = next((part for part in get_args(kind) if part is not NoneType), kind)
    if issubclass(mine, Enum):
        mine = Literal[tuple(member.value for member in mine)]
    read: Any = Annotated[mine, pydantic.Field(**given)]
    return (read | None if NoneType in get_args(kind) else read), default_of(field)
