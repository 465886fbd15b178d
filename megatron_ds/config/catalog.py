"""The list of all options, read off the classes in blocks: what flags, files, reports and docs share."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.option import OptionBlock

Kind = Literal["int", "float", "bool", "str", "list"]

# Bytes of a path, and of one name in it, that Linux and its file systems take.
_LONGEST_PATH, _LONGEST_NAME = 4095, 255


@dataclass(frozen=True)
class Option:
    """One option of a run.

    Attributes:
        path: block and name, for instance ``training.train_iters``; also its key below ``megatron_ds`` in a JSON.
        block: the block's name.
        name: the field's name.
        field: pydantic's description of the field: default, help text, constraints.
        kind: the kind of value, without "or None".
        choices: the values that are allowed, when the type lists them.
    """

    path: str
    block: str
    name: str
    field: FieldInfo
    kind: Kind
    choices: tuple[str | int, ...]

    @property
    def flag(self) -> str:
        """The flag in Megatron's spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other flags that mean the same."""
        return tuple(self._extra["aliases"])

    @property
    def older_values(self) -> Mapping[str, str]:
        """Older spellings of values, and what they mean today."""
        values: Mapping[str, str] = self._extra["older_values"]
        return values

    @property
    def switches(self) -> Mapping[str, str | bool]:
        """Flags without a value, and the value that each of them means."""
        switches: Mapping[str, str | bool] = self._extra["switches"]
        return switches

    @property
    def long_text(self) -> bool:
        """True when a text may be longer than a path."""
        return bool(self._extra["long_text"])

    @property
    def required(self) -> bool:
        """True when there is no default."""
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """The default; None for a required option."""
        return None if self.required else self.field.default

    @property
    def help(self) -> str:
        """The help text."""
        return self.field.description or ""

    @property
    def range_text(self) -> str:
        """The numbers that are allowed, in words; empty where nothing bounds them."""
        words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        bounds = [
            f"{word} {bound:g}" if isinstance(bound, float) else f"{word} {bound}"
            for one in self.field.metadata
            for attribute, word in words.items()
            if (bound := getattr(one, attribute, None)) is not None
        ]
        return " and ".join(bounds)

    @property
    def json_key(self) -> str:
        """The key in a DeepSpeed JSON."""
        return f"megatron_ds.{self.path}"

    @property
    def _extra(self) -> dict[str, Any]:
        extra = self.field.json_schema_extra
        assert isinstance(extra, dict), "every option is declared by option()"
        return extra


def block_classes() -> dict[str, type[OptionBlock]]:
    """The blocks by name, in the order of `RunConfig`."""
    blocks = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return {name: block for name, block in blocks.items() if isinstance(block, type) and issubclass(block, OptionBlock)}


@cache
def all_options() -> Mapping[str, Option]:
    """Every option by path."""
    found = {}
    for block, options in block_classes().items():
        for name, field in options.model_fields.items():
            kind, choices = _kind(field.annotation)
            found[f"{block}.{name}"] = Option(f"{block}.{name}", block, name, field, kind, choices)
    return types.MappingProxyType(found)


def _kind(annotation: Any) -> tuple[Kind, tuple[str | int, ...]]:
    """The kind of value that a type annotation stands for, and its choices if it is a list of words."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return ("int" if isinstance(choices[0], int) else "str"), choices
    if get_origin(annotation) is list:
        return "list", ()
    kinds: dict[Any, Kind] = {int: "int", float: "float", bool: "bool", str: "str"}
    return kinds[annotation], ()


@cache
def _adapter(path: str) -> TypeAdapter[Any]:
    field = all_options()[path].field
    annotated: Any = Annotated[field.annotation, field]
    return TypeAdapter(annotated, config=ConfigDict(allow_inf_nan=False))


def convert_text(option: Option, text: str | list[str]) -> Any:
    """Turns the text after a flag into the option's value.

    Args:
        option: the option.
        text: the word after the flag, or the list of words when the option takes several.

    Returns:
        The value in the option's type.

    Raises:
        ValueError: the text is no such value; the message says what is wanted.
    """
    if isinstance(text, str):
        text = option.older_values.get(text, text)
    value: Any = text
    if option.kind in ("int", "float") and isinstance(text, str):
        value = _number(text)
    return _validated(option, value)


def convert_json(option: Option, value: Any) -> Any:
    """Checks a value that was read from a JSON, where numbers are numbers and not text.

    Args:
        option: the option.
        value: the value as `json` reads it.

    Returns:
        The value in the option's type.

    Raises:
        ValueError: the value has the wrong type or is out of range; the message says what is wanted.
    """
    if isinstance(value, str):
        value = [value] if option.kind == "list" else option.older_values.get(value, value)
    return _validated(option, value)


def _number(text: str) -> Any:
    """The number that `text` spells; the text itself when it spells none."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _validated(option: Option, value: Any) -> Any:
    if isinstance(value, bool) and option.kind != "bool":
        raise ValueError(_wanted(option))  # for Python, and so for a list of choices, True is 1
    if option.kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)  # people write 1e5 for a count
    if option.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = _float(value)
    try:
        valid = _adapter(option.path).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(_wanted(option, error)) from None
    for text in valid if isinstance(valid, list) else [valid]:
        if isinstance(text, str):
            check_text(text, is_path=not option.long_text)
    return valid


def _float(number: int) -> float:
    """`number` as a float; infinity, which no option takes, when it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def check_text(text: str, *, is_path: bool = True) -> None:
    """Checks what holds for every text that a user gives: nearly all of them are paths, or become part of one.

    Args:
        text: the text.
        is_path: whether it must be as short as a path.

    Raises:
        ValueError: the text is empty, or no file system takes it; the message says what is wanted.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValueError("text in UTF-8") from None
    if not text.strip():
        raise ValueError("text that isn't empty (leave the option out instead)")
    if b"\0" in encoded:
        raise ValueError("text without null characters")
    if is_path and (len(encoded) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in encoded.split(b"/"))):
        raise ValueError(
            f"text of at most {_LONGEST_PATH} bytes, and {_LONGEST_NAME} between two slashes, as a path has"
        )


def _wanted(option: Option, error: ValidationError | None = None) -> str:
    """What the option takes, in our words; a range is told by pydantic's own message."""
    if option.choices:
        return "one of " + ", ".join(str(choice) for choice in option.choices)
    details = error.errors()[0] if error is not None else None
    if details is not None and details["type"].startswith(("greater_than", "less_than")):
        return "a number " + details["msg"].removeprefix("Input should be ")
    wanted = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "list": "a list of texts",
    }
    return wanted[option.kind]
