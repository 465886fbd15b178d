"""The scripts for BERT under SMOKE=1, each on what the ones before it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.training.metrics import read_metrics
from tests.launch.helpers import PP
from tests.scripts.smoke import assert_merged_is, assert_trained_as, layout, smoke


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SMOKE_DIR with token files, made by preprocess_data.sh, and the run of pretrain_bert.sh."""
    folder: Path = tmp_path_factory.mktemp("smoke_bert")
    assert "bert_text_sentence: 200 documents" in smoke(folder, "pretrain_bert.sh")  # which starts preprocess_data.sh
    return folder


@pytest.mark.slow
def test_pretrain_bert_in_one_process_learns(made):
    assert layout(made / "pretrain_bert") == {"TP": 1, "PP": 1, "ZeRO": 1, "recompute": False}
    of_training = [line for line in read_metrics(made / "pretrain_bert/metrics.jsonl") if "split" not in line]
    assert of_training[-1]["lm_loss"] < of_training[0]["lm_loss"] - 0.3


@pytest.mark.slow
def test_pretrain_bert_distributed_trains_the_same_model(made):
    assert "TP1 x PP1 x DP2, ZeRO-2" in smoke(made, "pretrain_bert_distributed.sh", "--zero-stage", "2")
    assert_trained_as(made / "pretrain_bert_distributed", made / "pretrain_bert")


@pytest.mark.slow
def test_pretrain_bert_with_mp_trains_the_same_model_which_merge_mp_bert_joins(made):
    output = smoke(made, "merge_mp_bert.sh")  # which starts the training that it needs
    assert "pretrain_bert_distributed_with_mp at toy size" in output
    assert "TP2 x PP2 x DP1, ZeRO-1, fp32 on 4 processes" in output
    assert_trained_as(made / "pretrain_bert_distributed_with_mp", made / "pretrain_bert")
    assert_merged_is(made / "merge_mp_bert.safetensors", made / "pretrain_bert")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "flags", "layout_text", "sets", "predictions"),
    [
        (
            "mnli",
            [],
            "TP1 x PP1 x DP2, ZeRO-1",
            {"dev_matched", "dev_mismatched"},
            {"test_test_matched.tsv": 8, "test_test_mismatched.tsv": 8},
        ),
        ("race", [PP, "2"], "TP1 x PP2 x DP1, ZeRO-1", {"dev"}, {"test_test.jsonl": 12}),
    ],
)
def test_finetune_begins_with_the_pretrained_body_and_judges_every_epoch(
    made, task, flags, layout_text, sets, predictions
):
    script = f"finetune_{task}_distributed"
    output = smoke(made, f"{script}.sh", *flags)
    assert f"of the body from {made}/pretrain_bert/global_step10" in output
    assert layout_text in output
    validation = [line for line in read_metrics(made / script / "metrics.jsonl") if line.get("split") == "valid"]
    assert {(line["set"], line["step"]) for line in validation} == {(name, step) for name in sets for step in (3, 6)}
    assert all(0 <= line["accuracy"] <= 1 for line in validation)
    files = (made / script).glob("predictions/step6/test_*")
    assert {path.name: len(path.read_text().splitlines()) for path in files} == predictions
