from __future__ import annotations

import json
import logging
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from megatron_ds.cli import preprocess
from megatron_ds.data.encode import EncodeOptions, encode_in_order
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.json_lines import LineBatch, read_line_batches
from megatron_ds.errors import ConfigError, DataError
from megatron_ds.tokenizers import build_tokenizer
from tests.full_disk import full_disk
from tests.tokenizers.conftest import Flags, byte_level_bpe


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def preprocess_files(source: Path | list[Path], prefix: Path, *options: str, tokenizer: str = "ByteTokenizer") -> None:
    """Preprocesses with bytes and one worker unless told otherwise."""
    sources = source if isinstance(source, list) else [source]
    command = ["--input", *map(str, sources), "--output-prefix", str(prefix), "--tokenizer-type", tokenizer]
    preprocess.main([*command, "--workers", "1", *options])


def run(source: Path | list[Path], prefix: Path, *options: str, tokenizer: str = "ByteTokenizer") -> list[list[int]]:
    """Preprocesses with bytes and one worker unless told otherwise; returns the documents."""
    preprocess_files(source, prefix, *options, tokenizer=tokenizer)
    indexed = IndexedDataset(f"{prefix}_text_document")
    return [indexed[number].tolist() for number in range(len(indexed))]


def text_of(ids: list[int]) -> str:
    return build_tokenizer(Flags("ByteTokenizer")).decode(ids)


def test_preprocess_empty_documents_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D1: empty first, in the middle and last."""
    source = write_lines(tmp_path / "in.jsonl", ["", " ", "a", "", "b"])
    with caplog.at_level(logging.INFO, "megatron_ds"):
        assert run(source, tmp_path / "out", "--append-eod") == [[97, 256], [98, 256]]
    assert "3 empty documents skipped under 'text'" in caplog.messages
    assert f"{tmp_path / 'out'}_text_document: 2 documents, 4 tokens of uint16" in caplog.messages


def test_preprocess_only_empty_documents_refused_and_nothing_stays(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["", " ", "\n"])
    with pytest.raises(DataError, match="no text under 'text': all of its 3 lines are empty"):
        run(source, tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_preprocess_any_text_survives(tmp_path: Path) -> None:
    texts = [
        "naïve café ☕",
        "nul \x00 byte",
        "e\u0301 is not \u00e9",
        "line\r\nend",
        "a <|endoftext|> inside",
        "\ufeffbom",
    ]
    documents = run(write_lines(tmp_path / "in.jsonl", texts), tmp_path / "out")
    assert [text_of(ids) for ids in documents] == texts


def test_preprocess_byte_order_mark_crlf_and_blank_lines_are_no_trouble(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": "b"}')
    assert [text_of(ids) for ids in run(source, tmp_path / "out")] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "is not JSON: Unterminated string starting at"),
        (b'{"title": "x", "n": 1}', "has no key 'text'; it has 'title', 'n'"),
        (b'{"text": null}', "has null under 'text'"),
        (b'{"text": 5}', "has a value of type int under 'text'"),
        (b'["text"]', "is a JSON list, not an object"),
        (b'{"text": "\\ud83d"}', r"half of a surrogate pair \(\\ud83d\) under 'text'"),
        (b'{"text": "\xff"}', "is not UTF-8: byte 0xff at position 10"),
        (b'{"text": "\x00"}', "is not JSON: Invalid control character"),
    ],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_preprocess_bad_line_names_file_and_line(tmp_path: Path, line: bytes, message: str, workers: str) -> None:
    good = write_lines(tmp_path / "good.jsonl", ["a", "b"])
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": ""}\nnot even JSON\n')
    with pytest.raises(DataError, match=f"{bad}:3 .*{message}"):
        run([good, bad], tmp_path / "out" / "x", "--workers", workers)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_preprocess_skip_bad_lines_counts_each_reason(
    tmp_path: Path, workers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D19."""
    lines = [
        b'{"text": "a", "title": "A"}',
        b'{"text": "cut',
        b'{"title": "x"}',
        b'{"text": null, "title": "x"}',
        b'{"text": 5, "title": "x"}',
        b'["text"]',
        b'{"text": "\\ud83d", "title": "x"}',
        b'{"text": "\xff"}',
        b"\0\0\0",
        b"[" * 100_000,
        b"",
        b'{"text": "e\xcc\x81 \xc3\xa9 \\u0000", "title": "B"}\r',
        b'{"text": "not lost", "title": null}',
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    with caplog.at_level(logging.INFO, "megatron_ds"):
        documents = run(
            source, tmp_path / "out", "--skip-bad-lines", "--json-keys", "text", "title", "--workers", workers
        )
    assert [text_of(ids) for ids in documents] == ["a", "e\u0301 \u00e9 \0"]
    titles = IndexedDataset(f"{tmp_path / 'out'}_title_document")
    assert [text_of(titles[number].tolist()) for number in range(len(titles))] == ["A", "B"]
    (message,) = [each for each in caplog.messages if "bad lines" in each]
    assert message.startswith("10 bad lines skipped: 2 not JSON, ")
    for count in (
        "1 no key 'text'",
        "1 null under 'text'",
        "1 no text under 'text'",
        "1 no JSON object",
        "1 half of a surrogate pair",
        "1 not UTF-8",
        "1 not readable",
        "1 null under 'title'",
    ):
        assert count in message
    assert message.endswith(f"the first: {source}:2 is not JSON: Unterminated string starting at at column 10")


def test_preprocess_skip_bad_lines_with_nothing_left_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('\n{"txt": "a"}\n{"txt": "b"}\n')
    with pytest.raises(DataError, match=r"of its 3 lines 2 are bad \(2 no key 'text'\).*in\.jsonl:2 has no key"):
        run(source, tmp_path / "out" / "x", "--skip-bad-lines")
    assert list((tmp_path / "out").iterdir()) == []


def test_preprocess_byte_order_marks_of_joined_files_are_no_trouble(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\xef\xbb\xbf{"text": "b"}\n\xef\xbb\xbf')
    assert [text_of(ids) for ids in run(source, tmp_path / "out")] == ["a", "b"]


def test_preprocess_key_named_twice_is_one_key(tmp_path: Path) -> None:
    assert run(write_lines(tmp_path / "in.jsonl", ["a"]), tmp_path / "out", "--json-keys", "text", "text") == [[97]]


def test_preprocess_bad_line_leaves_the_earlier_output(tmp_path: Path) -> None:
    expected = run(write_lines(tmp_path / "in.jsonl", ["a"]), tmp_path / "out")
    (tmp_path / "in.jsonl").write_text("broken")
    with pytest.raises(DataError):
        run(tmp_path / "in.jsonl", tmp_path / "out")
    assert IndexedDataset(f"{tmp_path / 'out'}_text_document")[0].tolist() == expected[0]


def test_preprocess_full_disk_is_one_clear_error_and_nothing_stays(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["text" * 5000])
    with full_disk(10_000), pytest.raises(DataError, match=r"can't be written: .*File too large"):
        run(source, tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_preprocess_each_key_has_its_own_files(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a", "title": "A"}\n{"text": "", "title": "B"}\n')
    assert run(source, tmp_path / "out", "--json-keys", "text", "title") == [[97]]
    titles = IndexedDataset(f"{tmp_path / 'out'}_title_document")
    assert [titles[number].tolist() for number in range(len(titles))] == [[65], [66]]


def test_preprocess_files_are_the_same_for_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    texts = [f"document {number} " * (number % 50) for number in range(2000)]
    source = [write_lines(tmp_path / "a.jsonl", texts[:700]), write_lines(tmp_path / "b.jsonl", texts[700:])]
    monkeypatch.setattr(preprocess, "BATCH_BYTES", 20_000)
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--append-eod")
    one = run(source, tmp_path / "one", *flags, tokenizer="HFTokenizer")
    two = run(source, tmp_path / "two", *flags, "--workers", "2", tokenizer="HFTokenizer")
    reference = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(tmp_path)))
    assert one == two == [[*reference.encode(text), 0] for text in texts if text]
    for suffix in (".bin", ".idx"):
        files = [tmp_path / f"{name}_text_document{suffix}" for name in ("one", "two")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "int32"), (70_000, "int32")])
def test_preprocess_large_vocabulary_ids_are_exact(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    """D6."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = [*range(65_498, min(65_538, vocab_size)), vocab_size - 1]
    source = write_lines(tmp_path / "in.jsonl", [" ".join(f"w{number}" for number in ids)])
    flags = ("--tokenizer-name-or-path", str(tmp_path))
    assert run(source, tmp_path / "out", *flags, tokenizer="HFTokenizer") == [ids]
    assert IndexedDataset(f"{tmp_path / 'out'}_text_document").dtype == dtype


def test_preprocess_added_tokens_count_in_the_dtype(tmp_path: Path) -> None:
    """D6: 65 530 words and 10 added tokens need more than 16 bits."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(65_530)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([f"<added{number}>" for number in range(10)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["w5 <added9>"])
    flags = ("--tokenizer-name-or-path", str(tmp_path))
    assert run(source, tmp_path / "out", *flags, tokenizer="HFTokenizer") == [[5, 65_539]]


def test_preprocess_eod_id_zero_is_written_once_per_document(tmp_path: Path) -> None:
    """T6, and no document can forge a border."""
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["one <|endoftext|> two", "three"])
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--append-eod")
    documents = run(source, tmp_path / "out", *flags, tokenizer="HFTokenizer")
    assert [document.count(0) for document in documents] == [1, 1]
    assert [document[-1] for document in documents] == [0, 0]


def test_preprocess_append_eod_without_one_refused(tmp_path: Path) -> None:
    byte_level_bpe([]).save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(ConfigError, match="the tokenizer has no end-of-document token"):
        run(
            source, tmp_path / "out", "--tokenizer-name-or-path", str(tmp_path), "--append-eod", tokenizer="HFTokenizer"
        )


def test_preprocess_every_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        run([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    assert [problem.message for problem in error.value.problems] == [
        f"input file not found: {tmp_path / name}" for name in ("x", "y")
    ]


def test_preprocess_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    byte_level_bpe([]).save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["a"] * 10)
    code = (
        "import sys; from megatron_ds.cli.preprocess import main; main(sys.argv[1:]); "
        "print({'torch', 'transformers', 'deepspeed', 'pydantic'} & set(sys.modules))"
    )
    command = ["--input", str(source), "--output-prefix", str(tmp_path / "out"), "--tokenizer-type", "HFTokenizer"]
    command += ["--tokenizer-name-or-path", str(tmp_path), "--workers", "2"]
    result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_read_line_batches_are_bounded_and_numbered(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [f"{number:04d}" for number in range(1000)])
    batches = list(read_line_batches([source, source], 1000))
    assert max(batch.num_bytes for batch in batches) < 1100
    assert b"".join(line for batch in batches for line in batch.lines) == source.read_bytes() * 2
    for batch in batches:
        assert f'"{batch.first_line - 1:04d}"'.encode() in batch.lines[0]


@pytest.mark.parametrize(("num_bytes", "most"), [(1, 6), (5_000_000, 3)])
def test_encode_in_order_holds_a_bounded_number_of_batches(num_bytes: int, most: int) -> None:
    """Three for each of two workers, or one and one that is read, where they are large."""
    read = 0

    def batches() -> Iterator[LineBatch]:
        nonlocal read
        for number in range(20):
            read += 1
            line = json.dumps({"text": str(number)}).encode()
            yield LineBatch(Path("in"), number, (line + b" " * (num_bytes - len(line)),))

    flags = Flags("ByteTokenizer")
    options = EncodeOptions(flags, None, ("text",), append_eod=False)
    for number, batch in enumerate(encode_in_order(batches(), options, build_tokenizer(flags), 2)):
        assert read <= number + most
        np.testing.assert_array_equal(batch.documents["text"].tokens, list(str(number).encode()))


def test_preprocess_special_tokens_are_ids_when_allowed(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a<|endoftext|>b"])
    assert 256 not in run(source, tmp_path / "plain")[0]
    assert run(source, tmp_path / "out", "--allow-special-tokens") == [[97, 256, 98]]


def test_preprocess_sentinels_count_in_the_vocabulary(tmp_path: Path) -> None:
    """T8: one id each, in the dtype of the file too."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(65_530)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["w5 <extra_id_9>"])
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--vocab-extra-ids", "10")
    assert run(source, tmp_path / "plain", *flags, tokenizer="HFTokenizer") == [[5, 0]]
    assert run(source, tmp_path / "out", *flags, "--allow-special-tokens", tokenizer="HFTokenizer") == [[5, 65_539]]
    assert IndexedDataset(f"{tmp_path / 'out'}_text_document").dtype == "int32"


@pytest.mark.parametrize(("num_words", "num_added", "dtype"), [(65_499, 10, "uint16"), (65_499, 38, "int32")])
def test_preprocess_words_and_added_tokens_decide_the_dtype(
    tmp_path: Path, num_words: int, num_added: int, dtype: str
) -> None:
    """D6: the last added token comes back as it was."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(num_words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([f"<added{number}>" for number in range(num_added)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", [f"w65498 <added{num_added - 1}>"])
    flags = ("--tokenizer-name-or-path", str(tmp_path))
    assert run(source, tmp_path / "out", *flags, tokenizer="HFTokenizer") == [[65_498, num_words + num_added - 1]]
    assert IndexedDataset(f"{tmp_path / 'out'}_text_document").dtype == dtype


def test_preprocess_bert_append_eod_is_eos(tmp_path: Path) -> None:
    """T6: another token is not taken for it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    source = write_lines(tmp_path / "in.jsonl", ["Hello [SEP]"])
    flags = ("--vocab-file", str(tmp_path / "vocab.txt"))
    assert run(source, tmp_path / "out", *flags, tokenizer="BertWordPieceLowerCase") == [[5, 1, 1, 1]]
    assert run(source, tmp_path / "out", *flags, "--append-eod", tokenizer="BertWordPieceLowerCase")[0][-1] == 7


@pytest.mark.parametrize("workers", ["1", "2"])
def test_preprocess_backends_write_the_same_bytes(
    tmp_path: Path, workers: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(preprocess, "BATCH_BYTES", 20_000)
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    # The last is encoded by tokenizers in either case: it is a letter in the newer of two editions of Unicode.
    source = write_lines(tmp_path / "in.jsonl", [*texts, "naïve 日本語 👩‍👩‍👧 \0 <|endoftext|>", "it\U00032559's"])
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--append-eod", "--workers", workers)
    notes = []
    for backend in ("auto", "tokenizers", "gigatoken"):
        caplog.clear()
        with caplog.at_level(logging.INFO, "megatron_ds"):
            run(source, tmp_path / backend, *flags, "--tokenizer-backend", backend, tokenizer="HFTokenizer")
        notes.append([message for message in caplog.messages if message.startswith("tokenizer:")])
    assert notes == [["tokenizer: gigatoken encodes"], [], ["tokenizer: gigatoken encodes"]]
    for suffix in (".bin", ".idx", ".json"):
        one, *others = (tmp_path / f"{name}_text_document{suffix}" for name in ("auto", "tokenizers", "gigatoken"))
        assert [one.read_bytes() == other.read_bytes() for other in others] == [True, True]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_preprocess_workers_that_are_forked_or_not_give_the_same(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda: context)
    source = write_lines(tmp_path / "in.jsonl", ["one", "two"])
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--workers")
    assert context.get_start_method() == method
    one, two = (run(source, tmp_path / n, *flags, n, tokenizer="HFTokenizer") for n in ("1", "2"))
    assert one == two


def test_preprocess_special_tokens_are_left_to_tokenizers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", ["<|endoftext|>"])
    flags = ("--tokenizer-name-or-path", str(tmp_path), "--allow-special-tokens")
    with caplog.at_level(logging.INFO, "megatron_ds"):
        assert run(source, tmp_path / "out", *flags, tokenizer="HFTokenizer") == [[0]]
    assert not any("gigatoken" in message for message in caplog.messages)
    with pytest.raises(ConfigError, match="--tokenizer-backend gigatoken and --allow-special-tokens are both given"):
        run(source, tmp_path / "out", *flags, "--tokenizer-backend", "gigatoken", tokenizer="HFTokenizer")
