"""The scripts for GPT under SMOKE=1, each on what the ones before it made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts.smoke import assert_merged_is, assert_trained_as, layout, losses, smoke


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SMOKE_DIR with token files, made by preprocess_data.sh, and the run of pretrain_gpt.sh."""
    folder: Path = tmp_path_factory.mktemp("smoke_gpt")
    assert "200 documents" in smoke(folder, "preprocess_data.sh")
    smoke(folder, "pretrain_gpt.sh")
    return folder


@pytest.mark.slow
def test_pretrain_gpt_in_one_process_learns(made):
    assert layout(made / "pretrain_gpt") == {"TP": 1, "PP": 1, "ZeRO": 1, "recompute": False}
    first, *_, last, validation = losses(made / "pretrain_gpt")
    assert last < first - 1
    assert validation < first - 1


@pytest.mark.slow
def test_pretrain_gpt_distributed_trains_the_same_model(made):
    assert "TP1 x PP1 x DP2, ZeRO-3" in smoke(made, "pretrain_gpt_distributed.sh", "--zero-stage", "3")
    assert_trained_as(made / "pretrain_gpt_distributed", made / "pretrain_gpt")


@pytest.mark.slow
def test_pretrain_gpt_with_mp_trains_the_same_model_which_merge_mp_gpt_joins(made):
    # merge_mp_gpt.sh starts the training that it needs. TP2 x PP2, which is the default, is BERT's test.
    output = smoke(made, "merge_mp_gpt.sh", TP="2", PP="1")
    assert "pretrain_gpt_distributed_with_mp at toy size" in output
    assert "TP2 x PP1 x DP1, ZeRO-1, fp32 on 2 processes" in output
    assert_trained_as(made / "pretrain_gpt_distributed_with_mp", made / "pretrain_gpt")
    assert_merged_is(made / "merge_mp_gpt.safetensors", made / "pretrain_gpt")


@pytest.mark.slow
def test_pretrain_gpt3_175b_without_slurm_trains_the_same_model_as_a_pipeline(made):
    smoke(made, "pretrain_gpt3_175B.sh", TP="1")
    assert layout(made / "pretrain_gpt3_175B") == {"TP": 1, "PP": 2, "ZeRO": 1, "recompute": True}
    assert_trained_as(made / "pretrain_gpt3_175B", made / "pretrain_gpt")


@pytest.mark.slow
def test_finetune_gpt_sft_begins_with_the_pretrained_model_and_learns(made):
    output = smoke(made, "finetune_gpt_sft.sh")
    assert f"from {made}/pretrain_gpt/global_step10" in output
    assert "train: 24 examples" in output
    first, *_, last_validation = losses(made / "finetune_gpt_sft")
    assert last_validation < first < losses(made / "pretrain_gpt")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "metric"), [("LAMBADA", "accuracy"), ("WIKITEXT103", "perplexity")])
def test_evaluate_zeroshot_gpt_scores_the_last_checkpoint(made, task, metric):
    smoke(made, "evaluate_zeroshot_gpt.sh", TASK=task)
    scores = json.loads((made / f"evaluate_zeroshot_gpt_{task}.json").read_text())
    assert scores["step"] == 10
    assert scores["options"].get("strict_lambada", False) is (task == "LAMBADA")
    (result,) = scores["results"]
    assert result["name"] == task
    assert metric in result["metrics"]
    assert result["num_examples"] == {"LAMBADA": 7, "WIKITEXT103": 1}[task]
