"""The scripts for BERT under SMOKE=1, each on what the ones before it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.smoke import assert_merged_is, assert_trained_as, layout, losses, smoke


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SMOKE_DIR with token files, made by preprocess_data.sh, and the run of pretrain_bert.sh."""
    folder: Path = tmp_path_factory.mktemp("smoke_bert")
    assert "bert_text_sentence: 200 documents" in smoke(folder, "pretrain_bert.sh")  # which starts preprocess_data.sh
    return folder


@pytest.mark.slow
def test_pretrain_bert_in_one_process_learns(made):
    assert layout(made / "pretrain_bert") == {"TP": 1, "PP": 1, "ZeRO": 1, "recompute": False}
    first, _, last, _ = losses(made / "pretrain_bert")[:4]
    assert last < first - 1


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
    assert_merged_is(made / "merge_mp_bert/model.safetensors", made / "pretrain_bert")
