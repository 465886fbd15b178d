from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_ds.tokenizers import build_tokenizer
from tests.tokenizers.conftest import Flags, byte_level_bpe


def fingerprint(path: Path) -> str:
    return build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(path))).fingerprint


def test_fingerprint_folder_file_and_copy_are_the_same(bpe_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    # Another order of the keys and other white space are the same tokenizer.
    content = json.loads((bpe_folder / "tokenizer.json").read_text())
    copy.write_text(json.dumps(dict(reversed(content.items())), indent=7))
    found = {fingerprint(path) for path in (bpe_folder, bpe_folder / "tokenizer.json", copy)}
    assert len(found) == 1
    (only,) = found
    assert len(bytes.fromhex(only)) == 32


def test_fingerprint_other_process_is_the_same(bpe_folder: Path) -> None:
    code = (
        "import sys; from megatron_ds.tokenizers import build_tokenizer; from tests.tokenizers.conftest import Flags; "
        "print(build_tokenizer(Flags('HFTokenizer', tokenizer_name_or_path=sys.argv[1])).fingerprint)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(bpe_folder)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == fingerprint(bpe_folder)


def test_fingerprint_gpt2_files_and_their_tokenizer_json_are_the_same(
    gpt2_files: tuple[Path, Path], tmp_path: Path
) -> None:
    vocab, merges = gpt2_files
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    files = build_tokenizer(Flags("GPT2BPETokenizer", vocab_file=str(vocab), merge_file=str(merges)))
    assert files.fingerprint == fingerprint(tmp_path / "tokenizer.json")


def _no_change(content: dict[str, Any]) -> None:
    content["truncation"] = None
    content["decoder"] = None
    content["model"]["ignore_merges"] = False


def _swap_ids(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def _drop_merge(content: dict[str, Any]) -> None:
    content["model"]["merges"].pop()


def _normalise(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "NFC"}


def _prefix_space(content: dict[str, Any]) -> None:
    content["pre_tokenizer"]["add_prefix_space"] = True


def _drop_added(content: dict[str, Any]) -> None:
    content["added_tokens"].pop()


def _match_added_as_word(content: dict[str, Any]) -> None:
    token = next(token for token in content["added_tokens"] if token["content"] == "<one>")
    token["single_word"] = True


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (_no_change, True),
        (_swap_ids, False),
        (_drop_merge, False),
        (_normalise, False),
        (_prefix_space, False),
        (_drop_added, False),
        (_match_added_as_word, False),
    ],
)
def test_fingerprint_changes_with_what_determines_ids(
    bpe_folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], is_same: bool
) -> None:
    content = json.loads((bpe_folder / "tokenizer.json").read_text())
    change(content)
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(content))
    assert (fingerprint(changed) == fingerprint(bpe_folder)) == is_same


def test_fingerprint_differs_between_kinds(sentence_piece_model: Path, bpe_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied.model"
    shutil.copy(sentence_piece_model, copy)
    piece, copied = (
        build_tokenizer(Flags("SentencePieceTokenizer", tokenizer_model=str(path))).fingerprint
        for path in (sentence_piece_model, copy)
    )
    assert piece == copied
    others = [
        fingerprint(bpe_folder),
        build_tokenizer(Flags("ByteTokenizer")).fingerprint,
        build_tokenizer(Flags("NullTokenizer"), vocab_size=9).fingerprint,
    ]
    assert len({piece, *others}) == 4
