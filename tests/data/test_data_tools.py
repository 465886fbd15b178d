"""``megatron-ds data inspect | show | build-index``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.cli import data_tools, preprocess
from megatron_ds.config import resolve, write_resolved
from megatron_ds.data import SampleCounts, build_gpt_datasets
from megatron_ds.data import gpt_build as build_module
from megatron_ds.data.describe import describe
from megatron_ds.data.samples import batch_hash
from megatron_ds.errors import ConfigError, DataError
from megatron_ds.training.starts import Start, note_start, read_starts
from tests.config.helpers import environ, words
from tests.data.conftest import numbered_documents, write_documents

TEXTS = ["the first text", "a second, longer one: ünïcode", "3", "four " * 20]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS * 5)
    (tmp_path / "corpus.jsonl").write_text(lines)
    options = ["--input", str(tmp_path / "corpus.jsonl"), "--output-prefix", str(tmp_path / "corpus")]
    preprocess.main([*options, "--tokenizer-type", "ByteTokenizer", "--append-eod", "--workers", "1"])
    return str(tmp_path / "corpus_text_document")


def run_words(corpus: str, *more: str) -> list[str]:
    return words("--data-path", corpus, "--split", "1,0,0", "--tokenizer-type", "ByteTokenizer", *more)


def test_inspect_counts_documents_tokens_and_lengths(corpus: str) -> None:
    lengths = [len(text.encode()) + 1 for text in TEXTS] * 5
    found = describe(corpus)
    assert (found.num_documents, found.num_sequences, found.num_tokens) == (20, 20, sum(lengths))
    assert (found.shortest, found.longest) == (2, 101)
    assert found.mean_length == pytest.approx(sum(lengths) / 20)
    assert found.percentiles == {50: sorted(lengths)[9], 90: 101, 99: 101}
    assert found.histogram == {0: 0, 1: 0, 2: 5, 4: 0, 8: 5, 16: 0, 32: 5, 64: 5}
    assert (found.smallest_id, found.largest_id) == (32, 256)
    assert found.ending_with_eod == 20
    assert found.info is not None
    assert found.info.tokenizer_type == "ByteTokenizer"


def test_inspect_prints_a_report_or_json(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    data_tools.main(["inspect", corpus])
    text = capsys.readouterr().out
    assert "documents    20 in 20 sequences" in text
    assert "ByteTokenizer, 257 ids, end of document 256" in text
    assert "20 documents end with the end-of-document id" in text
    data_tools.main(["inspect", "--json", corpus, corpus])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["num_documents"] for record in records] == [20, 20]


def test_inspect_files_without_documents_or_without_a_tokenizer(tmp_path: Path) -> None:
    empty = write_documents(tmp_path / "empty", [])
    found = describe(empty)
    assert (found.num_documents, found.num_tokens, found.largest_id, found.longest) == (0, 0, None, 0)
    assert found.info is None
    with_empty_document = write_documents(tmp_path / "some", [[], [5, 6, 7]])
    assert describe(with_empty_document).histogram == {0: 1, 1: 0, 2: 1}


def test_inspect_missing_or_broken_files_are_named(tmp_path: Path, corpus: str) -> None:
    with pytest.raises(DataError, match="data file not found"):
        data_tools.main(["inspect", str(tmp_path / "nothing")])
    Path(f"{corpus}.bin").write_bytes(b"")
    with pytest.raises(DataError, match="is truncated"):
        data_tools.main(["inspect", corpus])


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    data_tools.main(["show", *argv])
    return capsys.readouterr().out


def test_show_prints_the_text_that_a_step_consumed(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = run_words(corpus, "--global-batch-size", "4", "--train-iters", "6")
    run = resolve(options, environ(1), "test").run
    train = build_gpt_datasets(
        run.data, seq_length=16, seed=1234, samples=SampleCounts(24, 0, 0), is_builder=True, wait=lambda: None
    ).train
    assert train is not None
    text = shown(capsys, "--step", "3", *options)
    assert "step 3: samples 8 to 11 of the run" in text
    assert batch_hash(train[number] for number in range(8, 12)) in text
    assert text.count("--- sample ") == 4
    for number in range(8, 12):
        position = 0
        for piece in train.origin(number).pieces:
            document = TEXTS[piece.document % 4].encode() + b"\0"  # \0 in the place of the EOD
            ids = train[number][position : position + piece.tokens]
            piece_bytes = document[piece.first_token : piece.first_token + piece.tokens]
            assert [token % 256 for token in ids] == list(piece_bytes)
            assert f"[document {piece.document}, tokens {piece.first_token} to " in text
            if piece_bytes.rstrip(b"\0").isascii():
                assert piece_bytes.decode().replace("\0", "<|endoftext|>") in text
            position += piece.tokens
        assert position == 17
    assert text == shown(capsys, "--step", "3", *options)
    assert "(3 more samples)" in shown(capsys, "--step", "3", "--samples", "1", *options)


def test_show_of_a_blend_names_the_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_documents(tmp_path / "a", numbered_documents([160]))
    b = write_documents(tmp_path / "b", numbered_documents([160]))
    options = words("--data-path", "1", a, "1", b, "--split", "1,0,0", "--vocab-size", "160")
    text = shown(capsys, "--step", "1", *options, "--global-batch-size", "2")
    assert f"number 0 of {a}" in text
    assert f"number 0 of {b}" in text


def start(options: list[str], step: int, consumed_samples: int, world_size: int = 1) -> Start:
    run = resolve(options, environ(world_size), "test").run
    return Start(step, consumed_samples, run.model_dump())


def test_show_of_a_run_s_folder_knows_with_what_a_step_was_trained(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch size, seed and data of the time, whatever the run was resumed with since."""
    folder = tmp_path / "run"
    folder.mkdir()
    first = run_words(corpus, "--train-iters", "4", "--micro-batch-size", "1")
    then = run_words(corpus, "--train-iters", "8", "--global-batch-size", "6", "--seed", "7", "--allow-data-change")
    write_resolved(resolve(then, environ(1), "test"), folder)
    run = ("--run", str(folder))
    assert "step 3: samples 12 to 17 of the run, if all steps before had 6" in shown(capsys, *run, "--step", "3")
    note_start(folder, start(first, 0, 0, world_size=2), None)
    note_start(folder, start(then, 4, 8), None)
    by_folder = shown(capsys, *run, "--step", "3")
    assert "step 3: samples 4 to 5 of the run, as the run's folder says" in by_folder
    by_options = shown(capsys, "--step", "3", "--world-size", "2", *first)
    assert by_folder.splitlines()[2:] == by_options.splitlines()[2:]
    assert "step 5: samples 8 to 13 of the run, as the run's folder says" in shown(capsys, *run, "--step", "5")
    assert "step 8: samples 26 to 31" in shown(capsys, *run, "--step", "8")
    assert "samples 8 to 11" in shown(capsys, *run, "--step", "3", "--global-batch-size", "4")
    # Gone on from step 2 once more, in another folder.
    other = tmp_path / "other"
    note_start(other, start(first, 2, 4, world_size=2), folder)
    assert [each.step for each in read_starts(other)] == [0, 2]
    write_resolved(resolve(first, environ(2), "test"), other)
    assert "step 4: samples 6 to 7 of the run, as the run's folder says" in shown(
        capsys, "--run", str(other), "--step", "4"
    )


def test_starts_that_a_crash_cut_short_are_passed_over(corpus: str, tmp_path: Path) -> None:
    note_start(tmp_path, start(run_words(corpus), 0, 0), None)
    with (tmp_path / "starts.jsonl").open("a") as file:
        file.write('{"step": 4, "consu')
    assert [each.step for each in read_starts(tmp_path)] == [0]
    note_start(tmp_path, start(run_words(corpus), 4, 4), None)
    assert [each.step for each in read_starts(tmp_path)] == [0, 4]
    assert read_starts(tmp_path / "nothing") == []


@pytest.mark.parametrize("tool", [["show", "--step", "1"], ["build-index"]])
def test_tools_refuse_what_the_run_would(corpus: str, tmp_path: Path, tool: list[str]) -> None:
    other = words("--data-path", corpus, "--split", "1,0,0", "--tokenizer-type", "NullTokenizer", "--vocab-size", "300")
    with pytest.raises(ConfigError, match="was tokenized with ByteTokenizer"):
        data_tools.main([*tool, *other])
    data_tools.main([*tool, *other, "--allow-other-tokenizer"])
    plain = write_documents(tmp_path / "plain", [[500] * 40])
    with pytest.raises(ConfigError, match="token id 500, outside of the vocabulary of 257 ids"):
        data_tools.main([*tool, *run_words(plain)])


def test_show_refuses_what_is_no_step_or_no_run(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--step 9 is not one of the run's 4 steps"):
        data_tools.main(["show", "--step", "9", *run_words(corpus, "--train-iters", "4")])
    with pytest.raises(ConfigError, match="no folder of a run"):
        data_tools.main(["show", "--step", "1", "--run", str(tmp_path)])
    with pytest.raises(ConfigError, match="data file not found"):
        data_tools.main(["show", "--step", "1", *run_words(str(tmp_path / "nothing"))])


def test_build_index_leaves_nothing_to_build_for_the_run(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = run_words(corpus, "--train-iters", "6", "--tensor-model-parallel-size", "2")
    data_tools.main(["build-index", *options])
    run = resolve(options, environ(2), "test").run
    monkeypatch.setattr(build_module, "build_gpt_index", lambda *_, **__: pytest.fail("built again"))
    samples = SampleCounts(run.training.train_iters * run.global_batch_size, 0, 0)
    datasets = build_gpt_datasets(
        run.data, seq_length=16, seed=1234, samples=samples, is_builder=True, wait=lambda: None
    )
    assert datasets.train is not None
    data_tools.main(["build-index", *options])


def test_data_without_a_command_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, code in (([], 0), (["--help"], 0), (["nothing"], 2)):
        with pytest.raises(SystemExit) as stopped:
            data_tools.main(argv)
        assert stopped.value.code == code
        assert "build-index" in capsys.readouterr().out
