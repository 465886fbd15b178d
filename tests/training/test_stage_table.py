from __future__ import annotations

from functools import partial

import pytest

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models import gpt_layers, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit, Topology
from megatron_ds.training.stage_table import stage_table


def _table(stages: list[range], *, untied: bool = False, tp_size: int = 1) -> list[str]:
    model = ModelConfig(
        num_layers=3,
        hidden_size=4,
        num_attention_heads=2,
        seq_length=8,
        vocab_size=10,
        make_vocab_size_divisible_by=1,
        untie_embeddings_and_output_weights=untied,
    )
    layers = partial(gpt_layers, model)
    topology = Topology(tp_size, len(stages), 1)
    return stage_table(
        layers(ModelParallelUnit.offline(topology, device="meta")), stages, whole_model_specs(layers, topology)
    )


# By hand: word embeddings 10 x 4, positions 8 x 4, a layer 12 x 16 + 13 x 4 = 244, the final norm 2 x 4.
# (A layer's 13 h are 3 + 1 + 4 + 1 of biases and 4 of norms.)
@pytest.mark.parametrize("tp_size", [1, 2])
def test_stage_table_counts_a_tied_copy_where_it_sits(tp_size: int) -> None:
    assert _table([range(3), range(3, 7)], tp_size=tp_size) == [
        "stage  transformer layers      parameters  share  beside them",
        "0      1: layers.0             316         37.1%  word_embeddings, position_embeddings",
        "1      2: layers.1 … layers.2  536         62.9%  final_layernorm, lm_head (copy of word_embeddings)",
    ]


def test_stage_table_of_an_own_head_and_a_stage_of_embeddings() -> None:
    assert _table([range(2), range(2, 7)], untied=True) == [
        "stage  transformer layers      parameters  share  beside them",
        "0      0                       72          8.5%   word_embeddings, position_embeddings",
        "1      3: layers.0 … layers.2  780         91.5%  final_layernorm, lm_head",
    ]


def test_stage_table_of_one_stage_counts_a_tied_weight_once() -> None:
    assert _table([range(7)])[1] == (
        "0      3: layers.0 … layers.2  812         100.0%  "
        "word_embeddings, position_embeddings, final_layernorm, lm_head (shares word_embeddings)"
    )
