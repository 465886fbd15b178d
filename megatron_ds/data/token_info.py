"""What a pair of token files was made with: a ``.json`` beside the ``.bin`` and the ``.idx``.

The format of the pair is Megatron's and has no room for it. Files of Megatron's own tools have no such ``.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.data.indexed_format import broken_file
from megatron_ds.data.replace_files import NewFile, put_in_place, temporary_suffix
from megatron_ds.errors import DataError, Problem


@dataclass(frozen=True)
class TokenInfo:
    """What a pair of token files was made with. Nothing in it depends on the time or the machine.

    Attributes:
        tokenizer_type: as given, for instance ``HFTokenizer``.
        fingerprint: hash of everything that determines the ids; see `megatron_ds.tokenizers.Tokenizer`.
        vocab_size: rows that an embedding needs.
        eod_id: the tokenizer's end-of-document id, or None.
        append_eod: whether each document ends with it.
        keys: the keys or columns of the texts.
        split_sentences: whether each sentence is a sequence; otherwise each document is one.
        language: code of the language whose rules cut sentences; None without.
        keep_newlines: whether the white space between sentences is kept.
        allow_special_tokens: whether the string of a special token in a document became its id.
        documents: number of documents.
        tokens: number of tokens.
    """

    tokenizer_type: str
    fingerprint: str
    vocab_size: int
    eod_id: int | None
    append_eod: bool
    keys: tuple[str, ...]
    split_sentences: bool
    language: str | None
    keep_newlines: bool
    allow_special_tokens: bool
    documents: int
    tokens: int


# What has to be the same in files that are joined, beside the tokenizer.
_MADE_WITH = (
    "vocab_size",
    "eod_id",
    "append_eod",
    "split_sentences",
    "language",
    "keep_newlines",
    "allow_special_tokens",
)


def info_path(prefix: str) -> Path:
    """The file beside ``<prefix>.bin`` and ``.idx``."""
    return Path(f"{prefix}.json")


def read_token_info(prefix: str) -> TokenInfo | None:
    """What a pair was made with; None when nothing beside it says so.

    Args:
        prefix: path of the pair without suffix.

    Raises:
        DataError: the file is damaged.
    """
    path = info_path(prefix)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            Problem(f"{path} can't be read: {error}", advice="see to its permissions, or remove it")
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(broken_file(path, f"is not JSON: {error}")) from None
    return _checked(path, content)


def write_token_info(path: Path, info: TokenInfo) -> None:
    """Writes a description to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(asdict(info), file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def put_pairs_in_place(pairs: Sequence[tuple[IndexedDatasetBuilder, TokenInfo | None]]) -> None:
    """Puts finished pairs and their descriptions in the place of earlier ones, all of them or none.

    Everything is written before anything is replaced.

    Args:
        pairs: builders to which everything was added, each with the description of its pair; None: the pair has
            none, and an earlier pair's goes.

    Raises:
        OSError: the disk is full, or a file can't be replaced; see `put_in_place`.
    """
    suffix = temporary_suffix("part")
    temporary = [Path(f"{info_path(builder.prefix)}{suffix}") for builder, _ in pairs]
    try:
        groups = []
        for (builder, info), new_info in zip(pairs, temporary, strict=True):
            builder.prepare()
            if info is not None:
                write_token_info(new_info, info)
            new_bin, new_idx = builder.new_files()
            groups.append([new_bin, NewFile(info_path(builder.prefix), new_info if info else None), new_idx])
        put_in_place(groups)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def merge_token_infos(infos: Sequence[tuple[str, TokenInfo | None]]) -> TokenInfo | None:
    """What the documents of several pairs, one after the other, were made with.

    Args:
        infos: prefix and description of each pair.

    Returns:
        The common description, or None when a pair has none.

    Raises:
        DataError: two pairs were made differently; names both, and what differs.
    """
    known = [(prefix, info) for prefix, info in infos if info is not None]
    for prefix, info in known:
        if differences := _differences(known[0], (prefix, info)):
            raise DataError(
                Problem(
                    f"{known[0][0]} and {prefix} can't be merged: {'; '.join(differences)}",
                    advice="preprocess both with the same tokenizer and options",
                )
            )
    if not known or len(known) < len(infos):
        return None
    described = [info for _, info in known]
    return replace(
        described[0],
        keys=tuple(dict.fromkeys(key for info in described for key in info.keys)),
        documents=sum(info.documents for info in described),
        tokens=sum(info.tokens for info in described),
    )


def _differences(one: tuple[str, TokenInfo], other: tuple[str, TokenInfo]) -> list[str]:
    (prefix, info), (other_prefix, other_info) = one, other
    found = []
    if info.fingerprint != other_info.fingerprint:
        found.append(
            f"{prefix} was made with {_tokenizer_name(info)}, {other_prefix} with {_tokenizer_name(other_info)}"
        )
    for name in _MADE_WITH:
        value, other_value = getattr(info, name), getattr(other_info, name)
        if value != other_value:
            found.append(f"{prefix} has {name} {value}, {other_prefix} has {other_value}")
    return found


def _tokenizer_name(info: TokenInfo) -> str:
    return f"{info.tokenizer_type} {info.fingerprint[:12]}"


def _checked(path: Path, content: object) -> TokenInfo:
    kinds: dict[str, tuple[type, ...]] = {
        "tokenizer_type": (str,),
        "fingerprint": (str,),
        "vocab_size": (int,),
        "eod_id": (int, type(None)),
        "append_eod": (bool,),
        "keys": (list,),
        "split_sentences": (bool,),
        "language": (str, type(None)),
        "keep_newlines": (bool,),
        "allow_special_tokens": (bool,),
        "documents": (int,),
        "tokens": (int,),
    }
    assert list(kinds) == [field.name for field in fields(TokenInfo)], "every field is checked"
    if not isinstance(content, dict):
        raise DataError(broken_file(path, f"has a JSON {type(content).__name__} where an object belongs"))
    for name, allowed in kinds.items():
        # A bool is an int to Python.
        if name not in content or type(content[name]) not in allowed:
            found = f"{content[name]!r} as {name!r}" if name in content else f"no {name!r}"
            raise DataError(broken_file(path, f"has {found}"))
    values = {name: content[name] for name in kinds}
    return TokenInfo(**{**values, "keys": tuple(map(str, content["keys"]))})
