"""Whether a model that exists can be cut as somebody asks: the rules of layouts, without those of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.rules.common import TP
from megatron_ds.config.rules.model import padded_vocabulary_is_shared_evenly
from megatron_ds.config.rules.parallel import (
    processes_hold_whole_models,
    stages_have_layers,
    tp_divides_ffn,
    tp_divides_heads,
    tp_fits_groups,
)
from megatron_ds.config.settings import Given, Settings
from megatron_ds.errors import Problem
from megatron_ds.utils.text import counted

_TP_RULES = (tp_divides_heads, tp_divides_ffn, tp_fits_groups, padded_vocabulary_is_shared_evenly)


def layout_problems(
    model: ModelConfig, model_origin: str, parallel: Mapping[str, Given], processes: Given
) -> list[Problem]:
    """Every reason why a model can't be spread over processes in this way.

    Args:
        model: the architecture.
        model_origin: where it is from, for instance a checkpoint's folder.
        parallel: the sizes, by path.
        processes: their number.
    """
    # Defaults are nobody's wish, and some rules ask for that.
    options = model.model_dump(exclude_defaults=True)
    given = {f"model.{name}": Given(value, model_origin) for name, value in options.items()}
    settings = Settings({**given, **parallel}, processes.value, processes.origin)
    # The rules' own advice is to make another model, or to count layers out, which only training can.
    few_layers = f"this model fills at most {counted(model.num_layers, 'pipeline stage')}"
    ranks = f"this model can be cut over {_listed(_tp_sizes(settings))} tensor-parallel ranks"
    return [
        *processes_hold_whole_models(settings),
        *(replace(problem, advice=few_layers) for problem in stages_have_layers(settings)),
        *(replace(problem, advice=ranks) for problem in _tp_problems(settings)),
    ]


def _tp_problems(settings: Settings) -> list[Problem]:
    return [problem for rule in _TP_RULES for problem in rule(settings)]


def _tp_sizes(settings: Settings) -> list[int]:
    heads = settings.value("model.num_attention_heads")
    divisors = [size for size in range(1, heads + 1) if heads % size == 0]
    return [size for size in divisors if not _tp_problems(settings.with_given({TP: Given(size, "advice")}))]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
