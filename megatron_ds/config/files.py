"""Config files: where they are, and how they are read."""

from __future__ import annotations

import json
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import megatron_ds
from megatron_ds.config.spelling import did_you_mean
from megatron_ds.errors import ConfigError, Problem

# Levels of objects and lists in a file. Our own deepest key has four.
_DEEPEST = 16


@dataclass(frozen=True)
class ConfigFile:
    """A JSON file that was read.

    Attributes:
        label: the file's name in messages: as the user wrote it, or the file's own name for one of ours.
        content: the object in it.
        note: which file was taken, when the user gave a bare name; else empty.
    """

    label: str
    content: dict[str, Any]
    note: str = ""


def presets_folder() -> Path:
    """The folder with our own config files: `configs` of a checkout, or the copy inside an installed wheel."""
    package = Path(megatron_ds.__file__).resolve().parent
    installed = package / "_configs"
    return installed if installed.is_dir() else package.parent / "configs"


def read_deepspeed_config(name: str) -> ConfigFile:
    """Reads a DeepSpeed JSON.

    Args:
        name: a path, or the bare name of a file in configs/deepspeed or configs/runs.

    Raises:
        ConfigError: there is no such file, or it can't be read.
    """
    return _read(name, "--deepspeed_config", ("deepspeed", "runs"))


def read_block_file(name: str) -> ConfigFile:
    """Reads the file of ``--config``.

    Args:
        name: a path.

    Raises:
        ConfigError: there is no such file, or it can't be read.
    """
    return _read(name, "--config", ())


def read_model_preset(name: str, origin: str) -> ConfigFile:
    """Reads a model preset.

    Args:
        name: the bare name of a file in configs/models, or a path.
        origin: where the name was given.

    Raises:
        ConfigError: there is no such preset, or it can't be read.
    """
    return _read(name, origin, ("models",))


def _read(name: str, origin: str, folders: tuple[str, ...]) -> ConfigFile:
    path = Path(name)
    if _is_there(path, f"{origin} {name}"):
        return ConfigFile(name, read_json(path, name))
    ours = {file.stem: file for folder in folders for file in sorted((presets_folder() / folder).glob("*.json"))}
    stem = name.removesuffix(".json")
    if stem in ours:
        label = f"{stem}.json"
        return ConfigFile(label, read_json(ours[stem], label), f"{origin} {name}: taken from {ours[stem]}")
    where = " or ".join(f"configs/{folder}" for folder in folders)
    hint = did_you_mean(stem, ours) if folders else ""
    missing = f"{origin} {name}: there is no such file" + (f", and no such name in {where}" if where else "")
    raise ConfigError(Problem(f"{missing}{hint}"))


def _is_there(path: Path, label: str) -> bool:
    """True for a file, False for nothing.

    Raises:
        ConfigError: there is a folder or a device, or the system doesn't tell.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(Problem(f"{label} can't be read: {error.strerror}")) from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file (a device or a pipe)"
        raise ConfigError(Problem(f"{label} is {what}; a JSON file is wanted"))
    return True


class _DuplicateKeyError(ValueError):
    """A key stands twice in one JSON object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise _DuplicateKeyError(", ".join(twice))
    return dict(pairs)


def _text_of(path: Path, label: str) -> str:
    text = path.read_text(encoding="utf-8")
    if text.startswith("\ufeff"):
        raise ConfigError(
            Problem(
                f"{label} begins with a byte order mark, which JSON doesn't allow", advice="save it as UTF-8 without"
            )
        )
    return text


def _is_deeper(value: Any, levels: int) -> bool:
    """Tells whether objects and lists nest more than `levels` deep."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


def _has_half_characters(content: Any) -> bool:
    r"""Tells whether a text or a key has a lone surrogate, which ``\ud83d`` can spell and no output can write."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _too_deep(label: str) -> ConfigError:
    return ConfigError(Problem(f"{label} nests objects and lists more than {_DEEPEST} deep, which no option needs"))


def read_json(path: Path, label: str) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: the file.
        label: its name in messages.

    Returns:
        The object.

    Raises:
        ConfigError: the file can't be read, is no JSON, is no object, or gives a key twice.
    """
    try:
        content = json.loads(_text_of(path, label), object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise ConfigError(Problem(f"{label}: a key is given twice: {error}", advice="keep one of them")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            Problem(f"{label} is not UTF-8 text: byte {error.start} can't be read", advice="save the file as UTF-8")
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            Problem(f"{label} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
        ) from None
    except OSError as error:
        raise ConfigError(Problem(f"{label} can't be read: {error.strerror}")) from None
    except ValueError:
        raise ConfigError(
            Problem(f"{label} has a number with thousands of digits, which no option takes", advice="shorten it")
        ) from None
    except RecursionError:
        raise _too_deep(label) from None
    if _is_deeper(content, _DEEPEST):
        raise _too_deep(label)
    if _has_half_characters(content):
        raise ConfigError(Problem(f"{label} has half of a character, as \\ud83d is: such halves only come in pairs"))
    if not isinstance(content, dict):
        raise ConfigError(Problem(f"{label}: the outermost value is an object {{…}}, not {type(content).__name__}"))
    return content
