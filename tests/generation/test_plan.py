"""What `megatron-ds generate` refuses before it starts, and what it takes from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.cli.generate import parser
from megatron_ds.cli.generate_plan import Plan, plan_generation
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError
from megatron_ds.generation.options import Request, Sampling
from tests.generation.checkpoints import random_checkpoint
from tests.generation.models import POSITIONS, SIZES

VOCAB_SIZE = 300


def _model(**options: object) -> ModelConfig:
    return ModelConfig(**SIZES | {"vocab_size": VOCAB_SIZE} | options)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("run"), _model())


def _plan(folder: Path, *words: str, world_size: int = 1) -> Plan:
    environ = {"WORLD_SIZE": str(world_size)}
    if world_size > 1:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    return plan_generation(parser().parse_args(["--load", str(folder), *words]), environ)


def test_plan_takes_model_tokenizer_and_precision_from_the_checkpoint(checkpoint: Path) -> None:
    plan = _plan(checkpoint, "--prompt", "ab", "")
    job = plan.job
    assert job.requests == (Request((97, 98), 0), Request((256,), 1))
    assert (job.precision, job.tp_size, job.pp_size, job.checkpoint) == ("fp32", 1, 1, checkpoint / "global_step0")
    assert (job.decoding.eod_id, job.decoding.sampling) == (256, None)
    assert job.decoding.max_new_tokens == POSITIONS - 2, "what the positions leave"
    assert job.decoding.num_ids == 257, "ids that the tokenizer can't spell are never chosen"
    assert plan.notes == ("an empty prompt begins with the token that ends a document",)


def test_plan_takes_what_flags_say(checkpoint: Path) -> None:
    plan = _plan(
        checkpoint,
        *("--load-step", "0", "--prompt", "5 17", "--tokenizer-type", "NullTokenizer", "--eod-id", "0"),
        *("--max-new-tokens", "7", "--batch-size", "2", "--dtype", "bf16", "--temperature", "0.5", "--top-k", "9"),
        *("--top-p", "0.9", "--seed", "4", "--num-samples", "2", "--model-parallel-size", "2"),
        *("--pipeline-model-parallel-size", "3"),
        world_size=12,
    )
    job = plan.job
    assert job.requests == (Request((5, 17), 0, 0), Request((5, 17), 0, 1))
    assert (job.precision, job.tp_size, job.pp_size, job.batch_size) == ("bf16", 2, 3, 2)
    assert (job.decoding.eod_id, job.decoding.max_new_tokens, job.decoding.num_ids) == (0, 7, VOCAB_SIZE)
    assert job.decoding.sampling == Sampling(0.5, 9, 0.9, 4)


REFUSED = {
    "no such step": (["--load-step", "9", "--prompt", "a"], ["no checkpoint of step 9"]),
    "no prompt": ([], ["one of the arguments --prompt --prompts-file is required"]),
    "unknown flag": (["--prompt", "a", "--beams", "3"], ["unrecognized arguments: --beams 3"]),
    "temperature of 0": (["--prompt", "a", "--temperature", "0"], ["'0' is not a number above 0"]),
    "top-p above 1": (["--prompt", "a", "--top-p", "1.5"], ["'1.5' is not a number above 0 and at most 1"]),
    "TP of 0": (["--prompt", "a", "--tensor-model-parallel-size", "0"], ["tensor_model_parallel_size is"]),
    "greedy and drawn": (["--prompt", "a", "--greedy", "--top-k", "3"], ["--greedy is given together with"]),
    "seed and samples without draws": (
        ["--prompt", "a", "--seed", "3", "--num-samples", "2"],
        ["--seed is given", "--num-samples is given", "add --temperature 1"],
    ),
    "too long": (
        ["--prompt", "abc", "abcdef", "--max-new-tokens", str(POSITIONS)],
        ["prompt 2 has 6 tokens", f"{POSITIONS} positions", f"--max-new-tokens {POSITIONS - 6}"],
    ),
    "longer than all positions": (["--prompt", "a" * (POSITIONS + 1)], ["shorten the prompt"]),
    "no tokenizer files": (["--prompt", "a", "--tokenizer-type", "GPT2BPETokenizer"], ["needs --vocab-file"]),
    "EOD outside": (["--prompt", "a", "--eod-id", "300"], ["eod_id 300 is outside of the vocabulary of 300 ids"]),
    "empty without EOD": (["--prompt", "1", "", "--tokenizer-type", "NullTokenizer"], ["prompt 2 is empty"]),
    "layout": (
        ["--prompt", "a", "--tensor-model-parallel-size", "3"],
        ["1 process can't", "1, 2 or 4 tensor-parallel"],
    ),
    "output is a folder": (["--prompt", "a", "--output", "/"], ["--output / is a folder"]),
    "output without folder": (["--prompt", "a", "--output", "/nowhere/a.jsonl"], ["its folder does not exist"]),
    "no prompts file": (["--prompts-file", "/nowhere.txt"], ["/nowhere.txt can't be read"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_are_refused_before_the_start(case: str, checkpoint: Path) -> None:
    words, wanted = REFUSED[case]
    if "--max-new-tokens" not in words:
        words = [*words, "--max-new-tokens", "4"]
    with pytest.raises(MegatronDsError) as error:
        _plan(checkpoint, *words)
    for text in wanted:
        assert text in str(error.value)


def test_everything_that_is_wrong_is_in_one_report(checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as error:
        _plan(checkpoint, "--prompt", "a" * 30, "--seed", "1", "--pipeline-model-parallel-size", "4", world_size=6)
    assert len(error.value.problems) == 4


def test_checkpoint_that_names_no_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, _model(), {})
    with pytest.raises(ConfigError, match="names no tokenizer"):
        _plan(folder, "--prompt", "a")


def test_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, _model(vocab_size=256))
    with pytest.raises(ConfigError, match="the tokenizer has 257 ids, and the model 256"):
        _plan(folder, "--prompt", "a")


def test_model_that_sees_both_directions_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, _model(model_type="bert"))
    with pytest.raises(CheckpointError, match="is a BERT"):
        _plan(folder, "--prompt", "a")


def test_folder_without_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint") as caught:
        _plan(tmp_path, "--prompt", "a")
    advice = caught.value.problems[0].advice or ""
    assert "checkpoint import" in advice and "--allow-fresh-start" not in advice


def test_texts_longer_than_those_of_training_are_noted_where_positions_are_not_learned(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, _model(position_embedding_type="rope"))
    (note,) = _plan(folder, "--prompt", "abc", "--max-new-tokens", str(POSITIONS)).notes
    assert f"get {POSITIONS + 3} tokens long, and the model was trained with {POSITIONS}" in note
    assert _plan(folder, "--prompt", "abc", "--max-new-tokens", "2").notes == ()
    assert _plan(folder, "--prompt", "abc").job.decoding.max_new_tokens == 64


def test_tokenizer_without_end_of_document_is_noted(checkpoint: Path) -> None:
    words = ("--prompt", "5", "--tokenizer-type", "NullTokenizer", "--max-new-tokens", "3")
    (note,) = _plan(checkpoint, *words).notes
    assert note.startswith("no token is known that ends a document")


def test_prompts_are_read_from_lines_of_text_and_json(checkpoint: Path, tmp_path: Path) -> None:
    text, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_text("one two\n\n  indented\r\n", encoding="utf-8")
    lines.write_text("\n".join(map(json.dumps, ["two\nlines", {"prompt": ""}, {"prompt": "ä", "id": 3}])))
    words = ("--max-new-tokens", "2", "--prompts-file")
    assert _plan(checkpoint, *words, str(text)).prompts == ("one two", "  indented")
    assert _plan(checkpoint, *words, str(lines)).prompts == ("two\nlines", "", "ä")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("{", "line 2 is no JSON"), ('{"text": "a"}', "line 2 has no prompt"), ('{"prompt": 3}', "line 2 has no prompt")],
)
def test_json_line_without_prompt_is_refused_by_number(
    line: str, wanted: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"a"\n{line}\n')
    with pytest.raises(ConfigError, match=wanted):
        _plan(checkpoint, "--prompts-file", str(file))


def test_files_without_prompts_or_with_other_bytes_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n \n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        _plan(checkpoint, "--prompts-file", str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="can't be read"):
        _plan(checkpoint, "--prompts-file", str(file))
    with pytest.raises(ConfigError, match="is the file with the prompts"):
        _plan(checkpoint, "--prompts-file", str(file), "--output", str(file))
    with pytest.raises(ConfigError, match="prompt 1 is no text in UTF-8"):
        _plan(checkpoint, "--prompt", "\udcff")


def test_special_tokens_in_prompts_are_text_unless_allowed(checkpoint: Path) -> None:
    words = ("--max-new-tokens", "2", "--prompt", "<|endoftext|>a")
    assert len(_plan(checkpoint, *words).job.requests[0].tokens) == 14
    assert _plan(checkpoint, *words, "--allow-special-tokens").job.requests[0].tokens == (256, 97)


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_help_is_printed_by_the_first_process(
    rank: str, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.count("usage: megatron-ds generate") == times
