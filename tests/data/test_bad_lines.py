"""D19: every kind of bad line, with several keys, in every arrangement of processes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.token_info import read_token_info
from megatron_ds.errors import DataError
from megatron_ds.tokenizers import build_tokenizer
from tests.data.test_preprocess import preprocess_files
from tests.tokenizers.conftest import Flags, byte_level_bpe

GOOD = [
    '{"text": "plain", "title": "T"}',
    '{"text": "nul \\u0000 inside", "title": "\\u0000"}',
    '{"text": "e\u0301 is NFD, \u00e9 is NFC", "title": "e\u0301"}',
    '{"text": "a pair \\ud83d\\ude00 of surrogates", "title": "\\ud83d\\ude00"}',
    '{"text": "line\\r\\nends\\rof\\nall kinds", "title": "\\r"}',
    '{"text": "separators \u2028 \u2029 \u0085 end no line", "title": "\u2028"}',
    '{"n": [1, {"text": null}], "title": "order of keys", "text": "does not matter"}',
    '{"text": "first", "text": "the last of a name counts", "title": "T"}',
    '{"text": "\ufeffa mark that belongs to the text", "title": "\ufeff"}',
]
BAD = {
    b'{"text": "cut off': "not JSON",
    b'{"text": "a", "title": "A",}': "not JSON",
    b'{"text": "a", "title": "A"} {"text": "b", "title": "B"}': "not JSON",
    b"\x00\x00\x00": "not JSON",
    b'{"text": "a\x00b", "title": "A"}': "not JSON",
    b'"text"': "no JSON object",
    b"null": "no JSON object",
    b'{"title": "A"}': "no key 'text'",
    b'{"text": "a"}': "no key 'title'",
    b'{"text": null, "title": "A"}': "null under 'text'",
    b'{"text": "a", "title": null}': "null under 'title'",
    b'{"text": ["a"], "title": "A"}': "no text under 'text'",
    b'{"text": "\\ud83d", "title": "A"}': "half of a surrogate pair",
    b'{"text": "a", "title": "\\ude00 \\ud83d"}': "half of a surrogate pair",
    b'{"text": "\xed\xa0\xbd", "title": "A"}': "not UTF-8",
    b'{"text": "\xe9", "title": "A"}': "not UTF-8",
    '{"text": "a", "title": "A"}'.encode("utf-16"): "not UTF-8",
}
ARRANGEMENTS = [("--workers", "1"), ("--workers", "2"), ("--workers", "3", "--partitions", "3")]


def write_input(path: Path, lines: list[bytes]) -> Path:
    """Lines with a byte order mark, CRLF and LF line ends, blank lines, and no line end at the last one."""
    ends = [b"\r\n", b"\n", b"\n\r\n", b"\n \t\n"]
    text = b"".join(line + ends[number % len(ends)] for number, line in enumerate(lines))
    path.write_bytes(b"\xef\xbb\xbf" + text.rstrip())
    return path


def preprocess_both(source: Path, *options: str) -> dict[str, list[str]]:
    """The texts of both keys' files as a byte-level BPE gives them back."""
    folder = source.parent
    byte_level_bpe(["<|endoftext|>"]).save(str(folder / "tokenizer.json"))
    flags = ("--tokenizer-name-or-path", str(folder), "--json-keys", "text", "title")
    preprocess_files(source, folder / "out" / "x", *flags, *options, tokenizer="HFTokenizer")
    tokenizer = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(folder)))
    texts = {}
    for key in ("text", "title"):
        prefix = str(folder / "out" / f"x_{key}_document")
        indexed = IndexedDataset(prefix)
        indexed.check_index()
        info = read_token_info(prefix)
        assert info is not None
        assert (info.documents, info.tokens) == (indexed.num_documents, indexed.num_tokens)
        texts[key] = [tokenizer.decode(indexed[number].tolist()) for number in range(len(indexed))]
    return texts


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_good_lines_of_every_kind_come_back_as_they_were(tmp_path: Path, arrangement: tuple[str, ...]) -> None:
    source = write_input(tmp_path / "in.jsonl", [line.encode() for line in GOOD])
    documents = [json.loads(line) for line in GOOD]
    # White space alone is no text, under this key alone.
    expected = {key: [each[key] for each in documents if not each[key].isspace()] for key in ("text", "title")}
    assert preprocess_both(source, *arrangement) == expected


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("bad", BAD)
def test_bad_line_of_every_kind_is_named_and_nothing_stays(
    tmp_path: Path, bad: bytes, arrangement: tuple[str, ...]
) -> None:
    source = tmp_path / "in.jsonl"
    # No line end inside of what is UTF-16.
    source.write_bytes(b"\n".join([*(line.encode() for line in GOOD), b"", bad, *(line.encode() for line in GOOD)]))
    with pytest.raises(DataError) as error:
        preprocess_both(source, *arrangement)
    assert f"{source}:{len(GOOD) + 2} " in str(error.value)
    assert "give --skip-bad-lines; nothing was written" in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_bad_lines_of_every_kind_are_skipped_under_all_keys_and_counted(
    tmp_path: Path, arrangement: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [line for bad in BAD for line in (b'{"text": "good", "title": "G"}', bad)]
    source = write_input(tmp_path / "in.jsonl", lines)
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        texts = preprocess_both(source, "--skip-bad-lines", *arrangement)
    assert texts == {"text": ["good"] * len(BAD), "title": ["G"] * len(BAD)}
    (message,) = [each for each in caplog.messages if "bad lines skipped" in each]
    assert message.startswith(f"{len(BAD)} bad lines skipped: ")
    for reason in set(BAD.values()):
        assert f"{list(BAD.values()).count(reason)} {reason}" in message
    assert f"the first: {source}:2 is not JSON" in message


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_line_that_is_not_ids_is_a_bad_line_for_the_null_tokenizer(
    tmp_path: Path, arrangement: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    bad = ["1_0", "\u0663", "+5", "one", "10"]
    source = tmp_path / "in.jsonl"
    texts = [text for each in bad for text in ("5 9 0", each)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ("--vocab-size", "10", *arrangement)
    with pytest.raises(DataError, match=rf"{source}:2 has '1_0' where an id belongs, under 'text'\n.*--skip-bad-lines"):
        preprocess_files(source, tmp_path / "out" / "x", *options, tokenizer="NullTokenizer")
    assert list((tmp_path / "out").iterdir()) == []
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        preprocess_files(source, tmp_path / "out" / "x", *options, "--skip-bad-lines", tokenizer="NullTokenizer")
    indexed = IndexedDataset(str(tmp_path / "out" / "x_text_document"))
    assert [indexed[number].tolist() for number in range(len(indexed))] == [[5, 9, 0]] * 5
    assert "5 bad lines skipped: 5 not token ids under 'text'; the first: " in caplog.text
