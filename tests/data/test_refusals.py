"""Options of preprocess that are refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.errors import ConfigError
from tests.data.test_preprocess import run, write_lines
from tests.tokenizers.conftest import byte_level_bpe


@pytest.mark.parametrize(("suffix", "input_format"), [(".bin", "text"), (".idx", "jsonl"), (".json", "jsonl")])
@pytest.mark.parametrize("is_linked", [False, True])
def test_preprocess_output_that_is_an_input_refused(
    tmp_path: Path, suffix: str, input_format: str, is_linked: bool
) -> None:
    source = tmp_path / f"v_text_document{suffix}"
    write_lines(source, ["a"])
    before = source.read_bytes()
    if is_linked:
        (tmp_path / "link").symlink_to(tmp_path)
        (tmp_path / "in").symlink_to(source)
    prefix = tmp_path / "link" / "v" if is_linked else tmp_path / "v"
    name = tmp_path / "in" if is_linked else source
    with pytest.raises(ConfigError, match=rf"{prefix}_text_document\{suffix}, which is to be written, is what is read"):
        run(name, prefix, "--input-format", input_format)
    assert source.read_bytes() == before


def test_preprocess_output_that_is_the_tokenizer_refused(tmp_path: Path) -> None:
    tokenizer = tmp_path / "v_text_document.json"
    byte_level_bpe([]).save(str(tokenizer))
    source = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(ConfigError, match="which is to be written, is what is read"):
        run(source, tmp_path / "v", "--tokenizer-name-or-path", str(tokenizer), tokenizer="HFTokenizer")


@pytest.mark.parametrize("key", ["/text", "a/b", "../../text"])
def test_preprocess_key_with_a_slash_refused(tmp_path: Path, key: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({key: "a", "text": "b"}) + "\n")
    with pytest.raises(ConfigError, match=f"--json-keys '{key}' has a '/'"):
        run(source, tmp_path / "out" / "x", "--json-keys", "text", key)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("flag", ["--workers", "--partitions", "--log-interval", "--vocab-size"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1_0", "\u0663", ""])
def test_preprocess_number_that_is_none_is_told_in_words(
    tmp_path: Path, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "in.jsonl", tmp_path / "out", f"{flag}={value}")
    assert f"argument {flag}: {value!r} is not a whole number of 1 or more" in capsys.readouterr().err
