"""Finetuning begins with the same body whoever wrote it: ours at any layout, Hugging Face, Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tiny_run import MODELS, Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from tests.dist.pool import run_ranks
from tests.tasks.toy import NO_DROPOUT, VOCAB, finetune, write_mnli

CUT = Case(2, 2, 1, 1, more=(*MODELS["BERT"], "--layernorm-epsilon", "1e-12"))
TP = "--tensor-model-parallel-size"


def _pretrain(case: Case, folder: Path) -> None:
    tiny = TinyRun(case)
    for step in range(2):
        tiny.train_step(step)
    tiny.save(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT trained at TP2 x PP2, and what the tools make of it."""
    root = tmp_path_factory.mktemp("pretrained")
    run_ranks(CUT.world_size, _pretrain, case=CUT, folder=root / "ours")
    for name, more in (("hf", ()), ("megatron", ("--layout", "classic", "--target-tp", "2"))):
        checkpoint_tool(
            ["export", "--format", name, "--input", str(root / "ours"), "--output", str(root / name), *more]
        )
    return {name: root / name for name in ("ours", "hf", "megatron")}


def test_finetuning_begins_with_the_same_body_whoever_wrote_it(folders: dict[str, Path], tmp_path: Path) -> None:
    assert open_checkpoint(folders["ours"]).manifest.layout.tp_size == 2
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCAB))
    flags = ["--task", "MNLI", "--train-data", write_mnli(tmp_path / "MNLI.tsv"), "--lr", "1e-3", "--epochs", "1"]
    flags += ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", str(tmp_path / "vocab.txt"), *NO_DROPOUT]
    flags += ["--micro-batch-size", "2", "--global-batch-size", "4"]
    losses = {}
    for name, folder in folders.items():
        (outcome,) = run_ranks(1, finetune, flags=[*flags, "--pretrained-checkpoint", str(folder)])
        assert str(folder) in outcome.lines[0]
        assert "new, with random weights: classification_head" in outcome.lines[1]
        assert "not needed here: binary_head, lm_head" in outcome.lines[2]
        losses[name] = outcome.losses
    assert losses["hf"] == pytest.approx(losses["ours"], rel=1e-6)
    assert losses["megatron"] == pytest.approx(losses["ours"], rel=1e-6)
    for outcome in run_ranks(2, finetune, flags=[*flags, "--pretrained-checkpoint", str(folders["hf"]), TP, "2"]):
        assert outcome.losses == pytest.approx(losses["ours"], rel=1e-5)
    model = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16"]
    (fresh,) = run_ranks(1, finetune, flags=[*flags, *model])
    assert abs(fresh.losses[0] - losses["ours"][0]) > 1e-4
