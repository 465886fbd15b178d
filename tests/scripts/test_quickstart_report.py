from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from scripts.quickstart_report import main, training_tokens, unigram_entropy


def test_unigram_entropy_by_hand():
    # 1/2 of one token and 1/4 each of two: ln 2 / 2 + 2 ln 4 / 4 = 1.5 ln 2; id 2 never occurs.
    tokens = np.array([0, 0, 1, 3], dtype=np.uint16)
    assert unigram_entropy(tokens) == pytest.approx(1.5 * math.log(2), rel=1e-12)
    assert unigram_entropy(np.array([5, 5])) == 0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the corpus that it names: 3 training documents of tokens 0 to 7, and one of token 9."""
    prefix = str(tmp_path / "corpus")
    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        for _ in range(3):
            builder.add_document(np.arange(8, dtype=np.uint16))
        builder.add_document(np.full(50, 9, dtype=np.uint16))
    data = {"data_path": [prefix], "split": "3,1,0", "tokenizer_name_or_path": "tokenizer.json"}
    (tmp_path / "run_config.json").write_text(json.dumps({"data": data, "parallel": PARALLEL}))
    return tmp_path


PARALLEL = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}


def test_training_tokens_leaves_out_the_other_splits(run):
    tokens = training_tokens(str(run / "corpus"), "3,1,0")
    assert tokens.tolist() == [*range(8)] * 3


@pytest.mark.parametrize(("share", "exit_code"), [(0.84, 0), (0.86, 1)])
def test_main_fails_when_the_last_validation_loss_is_above_the_limit(run, share, exit_code, capsys):
    entropy = math.log(8)
    records = [
        {"step": 1, "lm_loss": 3.0},
        {"step": 1, "split": "valid", "set": "all", "loss": entropy * (1.7 - share)},
        {"step": 2, "split": "valid", "set": "all", "loss": entropy * share},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(run) == exit_code
    shown = capsys.readouterr()
    assert f"after 2 steps = {share:.2f} x unigram entropy {entropy:.3f}" in shown.out
    assert ("has not learnt" in shown.err) is bool(exit_code)
