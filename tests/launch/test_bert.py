"""pretrain_bert.py from texts to a checkpoint: alone, and as a pipeline (field reports P19, D22)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.cli.preprocess import main as preprocess
from megatron_ds.training.metrics import read_metrics
from tests.dist.pool import ROOT
from tests.launch.helpers import PP, fork, tiny_run

PRETRAIN_BERT = str(ROOT / "pretrain_bert.py")
_WORDS = ("birds", "sing", "in", "old", "trees", "near", "water")


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """A tiny BERT on documents of several sentences."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *_WORDS)))
    draws = np.random.default_rng(0)
    texts = [
        " ".join(" ".join(draws.choice(_WORDS, draws.integers(2, 6))).capitalize() + "." for _ in range(5))
        for _ in range(40)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", str(vocabulary)]
    blend = []
    for name in ("tiny", "other"):
        words = ["--input", str(tmp_path / "texts.jsonl"), "--output-prefix", str(tmp_path / name), "--split-sentences"]
        preprocess([*words, *tokenizer])
        blend += ["0.5", str(tmp_path / f"{name}_text_sentence")]
    return [*tiny_run("", **{"data-path": None}, vocab_size=None), *tokenizer, "--data-path", *blend]


def _losses(save: Path) -> list[float]:
    lines = read_metrics(save / "metrics.jsonl")
    return [line[name] for line in lines for name in ("lm_loss", "sop_loss")]


@pytest.mark.slow
def test_bert_trains_alike_alone_and_as_a_pipeline(flags: list[str], tmp_path: Path) -> None:
    alone = fork(1, PRETRAIN_BERT, *flags, "--save", "alone", folder=tmp_path)
    assert alone.exit_code == 0, alone.output
    cut = fork(2, PRETRAIN_BERT, *flags, PP, "2", "--save", "cut", folder=tmp_path)
    assert cut.exit_code == 0, cut.output
    assert "TP1 x PP2 x DP1, ZeRO-1, fp32 on 2 processes" in cut.output
    assert "| sop_loss " in cut.output
    assert "50.00%" in alone.output  # each half of the blend
    expected = _losses(tmp_path / "alone")
    assert len(expected) == 8
    assert _losses(tmp_path / "cut") == pytest.approx(expected, rel=1e-5)
