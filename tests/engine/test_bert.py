"""BERT's two losses over the global batch, and its checkpoints at other layouts (field reports P9, P19, C7)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.relayout import STEPS, STOP, Part, compare, straight_part
from benchmarks.tiny_run import MODELS, VOCAB_SIZE, Case, TinyRun, batch_of_run
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.zero_pieces import STATES
from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from megatron_ds.models import SequentialModel, bert_layers, initialize_weights
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks

BERT = Case(more=MODELS["BERT"])
FULL = Case(2, 2, 2, 1, micro_batch_size=2, more=MODELS["BERT"])


def _uneven(step: int, samples: int, length: int) -> Tensor:
    """Samples in which many, one or none of the tokens are to be predicted."""
    counts = (8, 1, 0, 8, 0, 0, 1, 0)
    return torch.stack([(torch.arange(length) < count).float() for count in counts[:samples]])


def _evaluate_and_train(case: Case) -> tuple[dict[str, float], dict[str, float], dict[str, float], float]:
    """Losses of an evaluation, their counts, the losses of a step, and what it trained on."""
    tiny = TinyRun(case, mask_rule=_uneven)
    found, result = tiny.engine.evaluate(tiny.batches(0)), tiny.train_step(0)
    losses, counts, trained = (
        {name: float(value) for name, value in part.items()} for part in (found.losses, found.counts, result.losses)
    )
    return losses, counts, trained, float(result.loss)


def _expected() -> dict[str, float]:
    """By PyTorch's functions on the whole batch."""
    run, mpu = BERT.resolve().run, ModelParallelUnit.offline()
    model = SequentialModel(bert_layers(run.model, mpu))
    initialize_weights(model.named_parameters(), run.training.seed, mpu)
    batch = batch_of_run(run, 0, BERT.global_batch_size, _uneven)
    scores, order = model(batch.inputs)
    is_masked = batch.loss_mask.bool()
    token_scores = scores.transpose(0, 1)[..., :VOCAB_SIZE][is_masked]
    return {
        "lm_loss": F.cross_entropy(token_scores, batch.labels[is_masked]).item(),
        "sop_loss": F.cross_entropy(order, batch.sop_labels).item(),
    }


@pytest.mark.parametrize(
    "case",
    [
        Case(micro_batch_size=1, more=MODELS["BERT"]),
        Case(dp=2, zero=2, micro_batch_size=2, more=MODELS["BERT"]),
        Case(2, 2, 1, 1, micro_batch_size=4, more=MODELS["BERT"]),
        Case(pp=2, dp=2, zero=1, micro_batch_size=1, more=MODELS["BERT"]),
    ],
    ids=lambda case: f"tp{case.tp}pp{case.pp}dp{case.dp}-mbs{case.micro_batch_size}",
)
def test_each_loss_is_a_mean_over_its_own_labels_of_the_global_batch(case: Case) -> None:
    """P9: 18 tokens and 8 samples, however they are cut."""
    expected = _expected()
    assert abs(expected["lm_loss"] - expected["sop_loss"]) > 1
    for losses, counts, trained, loss in run_ranks(case.world_size, _evaluate_and_train, case=case):
        assert counts == {"lm_loss": 18, "sop_loss": 8}
        assert losses == pytest.approx(expected, rel=1e-5)
        assert trained == pytest.approx(expected, rel=1e-5)
        assert loss == pytest.approx(sum(expected.values()), rel=1e-5)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return straight_part(FULL, tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize(
    "after",
    [Case(zero=0, more=BERT.more), Case(2, 1, 2, 3, more=BERT.more), Case(1, 2, 1, 1, more=BERT.more)],
    ids=lambda case: f"tp{case.tp}pp{case.pp}dp{case.dp}z{case.zero}",
)
def test_run_goes_on_at_another_layout(after: Case, straight: Part, tmp_path: Path) -> None:
    change = compare(straight, after, tmp_path)
    facts = change.moved.facts
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (after.tp, after.pp, after.dp, after.zero)
    assert facts["step"] == STOP + STEPS
    assert change.differing == []
    assert max(change.loss_difference, change.norm_difference) <= 1e-5
    manifest = open_checkpoint(tmp_path).manifest
    assert manifest.model["model_type"] == "bert"


def _code_of(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        checkpoint_tool([str(word) for word in words])
    return int(ended.value.code or 0)


def test_tools_know_the_model_of_a_checkpoint(straight: Part, tmp_path: Path) -> None:
    assert _code_of("verify", "--input", straight.folder) == 0
    checkpoint_tool(["reshard", "--input", str(straight.folder), "--output", str(tmp_path), "--target-tp", "4"])
    first, second = open_checkpoint(straight.folder), open_checkpoint(tmp_path)
    assert second.manifest.layout.tp_size == 4
    assert second.manifest.layers == first.manifest.layers
    assert {"lm_head.bias", "pooler.dense.weight", "binary_head.weight"} < set(first.specs)
    for name in first.specs:
        for kind in ("weights", *STATES):
            assert torch.equal(first.read(name, kind), second.read(name, kind)), (name, kind)
    assert _code_of("diff", straight.folder, tmp_path) == 0
    assert _code_of("diff", straight.folder, straight.folder / "end") == 1


@pytest.mark.parametrize("command", ["merge", "to-fp32"])
def test_one_file_has_the_weights_of_all_ranks(command: str, straight: Part, tmp_path: Path) -> None:
    checkpoint_tool([command, "--input", str(straight.folder), "--output", str(tmp_path / "one.safetensors")])
    first, merged = open_checkpoint(straight.folder), load_file(tmp_path / "one.safetensors")
    assert merged.keys() == set(first.specs)
    assert all(torch.equal(tensor, first.read(name)) for name, tensor in merged.items())


def test_inspect_tells_the_family_and_its_heads(straight: Part, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint_tool(["inspect", "--input", str(straight.folder)])
    text = capsys.readouterr().out
    assert "TP2 x PP2 x DP2" in text
    assert "  model       BERT, " in text
    assert "binary_head.weight" in text


def test_trained_model_goes_to_other_programs_and_comes_back(straight: Part, tmp_path: Path) -> None:
    """P19: what a pipeline trained, at TP2 x PP2 x DP2, in the formats of transformers and Megatron."""
    options = {"hf": ["--check"], "megatron": ["--layout", "classic", "--target-tp", "2", "--target-pp", "2"]}
    first = open_checkpoint(straight.folder)
    for name, more in options.items():
        there, back = str(tmp_path / name), str(tmp_path / f"{name}_back")
        checkpoint_tool(["export", "--format", name, "--input", str(straight.folder), "--output", there, *more])
        checkpoint_tool(["import", "--from", name, "--input", there, "--output", back])
        second = open_checkpoint(Path(back))
        assert second.manifest.model["model_type"] == "bert"
        assert all(torch.equal(first.read(weight), second.read(weight)) for weight in first.specs)


def _train(case: Case, folder: Path, start: int, end: int) -> tuple[list[float], str]:
    """Losses of the steps, and a hash of this rank's weights after the last; begins at a checkpoint, or leaves one."""
    tiny = TinyRun(case)
    if start:
        tiny.load(folder)
    losses = []
    for step in range(start, end):
        losses.append(float(tiny.train_step(step).loss))
        if step == 1 and not start:
            tiny.save(folder)
    digest = hashlib.sha1()
    for _, parameter in tiny.engine.named_parameters():
        held = getattr(parameter, "ds_tensor", parameter).detach().reshape(-1)
        if hasattr(parameter, "ds_tensor"):
            # ZeRO-3 leaves this rank a piece, and what fills up the last rank's is any number: 31 biases are odd.
            held = held[: max(0, parameter.ds_numel - tiny.mpu.dp_rank * held.numel())]
        digest.update(held.contiguous().view(torch.uint8).numpy().tobytes())
    return losses, digest.hexdigest()


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1, 2, 3, micro_batch_size=2, num_layers=2, dropout=0.1, more=MODELS["BERT"]),
        Case(1, 2, 1, 1, "bf16", micro_batch_size=2, dropout=0.1, more=MODELS["BERT, one loss"]),
    ],
    ids=lambda case: f"tp{case.tp}pp{case.pp}dp{case.dp}z{case.zero}-{case.precision}",
)
def test_resumed_run_with_dropout_is_the_straight_run_to_the_bit(case: Case, tmp_path: Path) -> None:
    straight = run_ranks(case.world_size, _train, case=case, folder=tmp_path, start=0, end=4)
    resumed = run_ranks(case.world_size, _train, case=case, folder=tmp_path, start=2, end=4)
    for (losses, weights), (later_losses, later_weights) in zip(straight, resumed, strict=True):
        assert later_losses == losses[2:]
        assert later_weights == weights
    without = run_ranks(
        1, _train, case=replace(case, tp=1, pp=1, dp=1, dropout=0.0), folder=tmp_path / "x", start=0, end=1
    )
    assert without[0][0][0] != straight[0][0][0]  # dropout took effect
