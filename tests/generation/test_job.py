"""Whole jobs: from files to texts, on one process, on replicas, and through a launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_ds.cli import generate
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import DataError
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.options import Request
from megatron_ds.generation.run import completions
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.generation.checkpoints import random_checkpoint
from tests.generation.models import PROMPTS, SIZES, Weights, greedy, llama
from tests.launch.helpers import launch, torchrun

PROMPT_TEXTS = ("h", "hey", "good day.")
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("run"), ModelConfig(**SIZES | {"vocab_size": 257}))


def _words(checkpoint: Path, output: Path, *more: str) -> list[str]:
    common = ["--load", str(checkpoint), "--output", str(output), "--max-new-tokens", str(NEW_TOKENS)]
    return [*common, "--prompt", *PROMPT_TEXTS, *more]


def _records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def records(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process makes of the prompts, greedy."""
    output = tmp_path_factory.mktemp("alone") / "texts.jsonl"
    generate.main(_words(checkpoint, output))
    return _records(output)


def test_texts_are_written_with_prompts_tokens_and_ends(records: list[dict[str, Any]]) -> None:
    assert [record["prompt"] for record in records] == list(PROMPT_TEXTS)
    assert [record["index"] for record in records] == [0, 1, 2]
    for record in records:
        assert record.keys() == {"index", "sample", "prompt", "text", "tokens", "stop"}
        assert record["text"] == bytes(record["tokens"]).decode(errors="replace")
        assert len(record["tokens"]) == NEW_TOKENS
        assert record["stop"] == "length"


def test_texts_of_small_batches_are_the_same(
    checkpoint: Path, records: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "texts.jsonl"
    generate.main(_words(checkpoint, output, "--batch-size", "2"))
    assert _records(output) == records


def test_end_of_document_is_in_the_tokens_and_not_in_the_text(
    checkpoint: Path, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    output, eod_id = tmp_path / "texts.jsonl", records[0]["tokens"][2]
    generate.main(_words(checkpoint, output, "--eod-id", str(eod_id)))
    first = _records(output)[0]
    expected = records[0]["tokens"][: records[0]["tokens"].index(eod_id) + 1]
    assert (first["tokens"], first["stop"]) == (expected, "eod")
    assert first["text"] == bytes(expected[:-1]).decode(errors="replace")


def test_samples_of_a_prompt_follow_one_another(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "texts.jsonl"
    words = _words(checkpoint, output, "--temperature", "2", "--num-samples", "2", "--seed", "3")
    generate.main(words)
    drawn = _records(output)
    assert [(record["index"], record["sample"]) for record in drawn] == [(i, s) for i in range(3) for s in range(2)]
    assert drawn[0]["tokens"] != drawn[1]["tokens"]
    output.unlink()
    generate.main(words)
    assert _records(output) == drawn


def test_output_that_is_there_is_kept(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.jsonl").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        generate.main(_words(checkpoint, tmp_path / "texts.jsonl"))
    assert ended.value.code == 4
    assert "texts.jsonl is there already" in capsys.readouterr().err
    assert (tmp_path / "texts.jsonl").read_text() == "mine"


def test_output_on_a_full_disk_ends_the_job_with_its_name(checkpoint: Path) -> None:
    with pytest.raises(DataError, match="/dev/full can't be written"):
        generate.main(_words(checkpoint, Path("/dev/full")))


def _replica(tp: int, config: ModelConfig, weights: Weights, batch_size: int) -> tuple[list[tuple[int, ...]], int]:
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    model = InferenceModel(config, mpu, torch.float32)
    model.load(lambda name, spec: spec.shard(weights[name], mpu.tp_rank, tp))
    requests = tuple(Request(tokens, number) for number, tokens in enumerate(PROMPTS * 2))
    return [each.tokens for each in completions(model, requests[:5], greedy(), batch_size)], mpu.dp_size


@pytest.mark.parametrize(("tp", "batch_size"), [(1, 1), (1, 4), (2, 2)])
def test_replicas_share_the_prompts_and_know_all_texts_in_order(tp: int, batch_size: int) -> None:
    reference = llama()
    expected = [tuple(reference.greedy(prompt, 10)) for prompt in (PROMPTS * 2)[:5]]
    arguments = {"tp": tp, "config": reference.config, "weights": reference.weights, "batch_size": batch_size}
    assert run_ranks(2 * tp, _replica, **arguments) == [(expected, 2)] * (2 * tp)


def test_torchrun_starts_a_job_of_two_stages(checkpoint: Path, records: list[dict[str, Any]], tmp_path: Path) -> None:
    # The first word is what DeepSpeed's launcher would have put there.
    words = _words(checkpoint, tmp_path / "texts.jsonl", "--pipeline-model-parallel-size", "2")
    finished = launch(torchrun(2, "-m", "megatron_ds", "--local_rank=0", "generate", *words), tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "TP1 x PP2 x DP1, fp32 on cpu" in finished.output
    assert finished.output.count("--- index 0: ") == 1, "one rank speaks"
    assert _records(tmp_path / "texts.jsonl") == records
