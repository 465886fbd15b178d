from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.cli import merge_data
from megatron_ds.data.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron_ds.data.token_info import TokenInfo, info_path, read_token_info, write_token_info
from megatron_ds.errors import DataError
from megatron_ds.tokenizers import build_tokenizer
from tests.data.test_preprocess import preprocess_files, run, write_lines
from tests.tokenizers.conftest import Flags, byte_level_bpe

INFO = TokenInfo("HFTokenizer", "0123456789abcdef", 300, 0, True, ("text",), False, None, False, False, 2, 5)


def write_pair(prefix: Path, info: TokenInfo | None) -> str:
    """A pair of 2 documents and 5 tokens."""
    with IndexedDatasetBuilder(str(prefix), np.uint16) as builder:
        builder.add_documents(np.arange(5), np.array([2, 3]))
    if info is not None:
        write_token_info(info_path(str(prefix)), info)
    return str(prefix)


def merge(output: Path, *prefixes: str) -> TokenInfo | None:
    merge_data.main(["--input", *prefixes, "--output-prefix", str(output)])
    return read_token_info(str(output))


def test_preprocess_writes_what_the_tokens_were_made_with(tmp_path: Path) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a b", "title": "A"}\n{"text": "", "title": "B"}\n')
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--append-eod", "--json-keys", "text", "title")
    preprocess_files(source, tmp_path / "out", *flags, tokenizer="HFTokenizer")
    tokenizer = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(tmp_path)))
    for key, documents in (("text", 1), ("title", 2)):
        prefix = f"{tmp_path / 'out'}_{key}_document"
        assert read_token_info(prefix) == TokenInfo(
            tokenizer_type="HFTokenizer",
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eod_id=0,
            append_eod=True,
            keys=(key,),
            split_sentences=False,
            language=None,
            keep_newlines=False,
            allow_special_tokens=False,
            documents=documents,
            tokens=IndexedDataset(prefix).num_tokens,
        )


def test_preprocess_split_sentences_are_in_the_description(tmp_path: Path) -> None:
    preprocess_files(write_lines(tmp_path / "in.jsonl", ["One. Two."]), tmp_path / "out", "--split-sentences")
    info = read_token_info(f"{tmp_path / 'out'}_text_sentence")
    assert info is not None
    assert (info.split_sentences, info.append_eod, info.documents, info.tokens) == (True, False, 1, 8)


def test_preprocess_that_fails_leaves_the_earlier_description(tmp_path: Path) -> None:
    run(write_lines(tmp_path / "in.jsonl", ["a"]), tmp_path / "out")
    before = info_path(f"{tmp_path / 'out'}_text_document").read_bytes()
    (tmp_path / "in.jsonl").write_text("broken")
    with pytest.raises(DataError):
        run(tmp_path / "in.jsonl", tmp_path / "out")
    assert info_path(f"{tmp_path / 'out'}_text_document").read_bytes() == before


def test_token_info_of_files_from_other_tools_is_none(tmp_path: Path) -> None:
    assert read_token_info(write_pair(tmp_path / "a", None)) is None


def test_token_info_is_read_as_it_was_written(tmp_path: Path) -> None:
    info = dataclasses.replace(INFO, eod_id=None, keys=("text", "títle"))
    write_token_info(info_path(str(tmp_path / "a")), info)
    assert read_token_info(str(tmp_path / "a")) == info
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has a JSON list where an object belongs"),
        (json.dumps({"tokenizer_type": "x"}), "has no 'fingerprint'"),
        (json.dumps({**dataclasses.asdict(INFO), "append_eod": 1}), "has 1 as 'append_eod'"),
        (json.dumps({**dataclasses.asdict(INFO), "documents": True}), "has True as 'documents'"),
    ],
)
def test_token_info_damaged_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=rf"{tmp_path / 'a.json'} {message}"):
        read_token_info(str(tmp_path / "a"))


def test_merge_carries_the_description_over(tmp_path: Path) -> None:
    prefixes = [
        write_pair(tmp_path / "a", INFO),
        write_pair(tmp_path / "b", dataclasses.replace(INFO, keys=("title", "text"))),
    ]
    expected = dataclasses.replace(INFO, keys=("text", "title"), documents=6, tokens=15)
    assert merge(tmp_path / "m", prefixes[0], prefixes[1], prefixes[0]) == expected


def test_merge_without_every_description_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known, unknown = write_pair(tmp_path / "a", INFO), write_pair(tmp_path / "b", None)
    write_token_info(info_path(str(tmp_path / "m")), INFO)
    assert merge(tmp_path / "m", known, unknown) is None
    assert f"{unknown} has no .json that names its tokenizer, so the merged files have none" in caplog.text
    assert merge(tmp_path / "m", unknown, unknown) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fingerprint": "fedcba9876543210", "tokenizer_type": "ByteTokenizer"},
            "{a} was made with HFTokenizer 0123456789ab, {b} with ByteTokenizer fedcba987654",
        ),
        ({"append_eod": False}, "{a} has append_eod True, {b} has False"),
        ({"eod_id": 5}, "{a} has eod_id 0, {b} has 5"),
        ({"split_sentences": True}, "{a} has split_sentences False, {b} has True"),
    ],
)
def test_merge_of_differently_made_files_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    a, b = write_pair(tmp_path / "a", INFO), write_pair(tmp_path / "b", dataclasses.replace(INFO, **changes))
    with pytest.raises(DataError) as error:
        merge(tmp_path / "out" / "m", a, write_pair(tmp_path / "c", None), b)
    assert f"{a} and {b} can't be merged: {message.format(a=a, b=b)}" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_merge_description_of_other_files_refused(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "a", dataclasses.replace(INFO, tokens=6))
    with pytest.raises(DataError, match=rf"{prefix}\.json says 2 documents and 6 tokens, {prefix}.* have 2 and 5"):
        merge(tmp_path / "m", prefix)
