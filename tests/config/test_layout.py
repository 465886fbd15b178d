"""Layouts of models that exist."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.layout import layout_problems
from megatron_ds.config.rules.common import PP, TP
from megatron_ds.config.settings import Given
from megatron_ds.errors import Problem


def _problems(tp: int, pp: int, world_size: int, **options: Any) -> list[Problem]:
    sizes = {"num_layers": 3, "hidden_size": 48, "num_attention_heads": 12, "seq_length": 16, "vocab_size": 61}
    parallel = {TP: Given(tp, "--tp"), PP: Given(pp, "--pp")}
    return layout_problems(ModelConfig(**sizes | options), "a checkpoint", parallel, Given(world_size, "WORLD_SIZE"))


@pytest.mark.parametrize(("tp", "pp", "world_size"), [(1, 1, 1), (4, 1, 4), (12, 3, 36), (1, 2, 2), (2, 1, 8)])
def test_layout_that_divides_has_no_problems(tp: int, pp: int, world_size: int) -> None:
    assert _problems(tp, pp, world_size) == []


@pytest.mark.parametrize(
    ("tp", "pp", "world_size", "options", "named"),
    [
        (2, 1, 1, {}, ["1 process can't be shared out"]),
        (1, 4, 4, {}, ["3 transformer layers can't fill 4"]),
        (5, 1, 5, {}, ["num_attention_heads 12", "MLP width"]),
        (6, 1, 6, {"num_query_groups": 4}, ["num_query_groups 4"]),
        (4, 1, 4, {"ffn_hidden_size": 50}, ["ffn_hidden_size 50"]),
        (3, 1, 3, {"pad_vocab_size_to": 64}, ["pad_vocab_size_to 64"]),
        (3, 4, 2, {"pad_vocab_size_to": 64}, ["2 processes", "3 transformer layers", "pad_vocab_size_to 64"]),
    ],
)
def test_layout_that_does_not_fit_is_refused_by_every_rule(
    tp: int, pp: int, world_size: int, options: dict[str, Any], named: list[str]
) -> None:
    problems = _problems(tp, pp, world_size, **options)
    assert len(problems) == len(named)
    for problem, beginning in zip(problems, named, strict=True):
        assert problem.message.startswith(beginning)
        assert problem.advice


def test_advice_on_stages_is_no_option_of_training() -> None:
    (problem,) = _problems(1, 4, 4)
    assert problem.advice == "this model fills at most 3 pipeline stages"
    assert "--pp-partition-method" not in problem.message


def test_advice_names_the_tensor_parallel_sizes_of_the_model() -> None:
    (problem,) = _problems(6, 1, 6, num_query_groups=4)
    assert problem.advice == "this model can be cut over 1, 2 or 4 tensor-parallel ranks"
    assert any((source.name, source.origin) == ("num_query_groups", "a checkpoint") for source in problem.sources)
