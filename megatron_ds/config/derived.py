"""Sizes that follow from others where nobody gives them: what ``--print-config`` shows in their place."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.settings import Given


def derived_values(run: RunConfig) -> dict[str, Given]:
    """The values in force of options that are None in `run`, by path.

    Args:
        run: the options.
    """
    values = {}
    for path, value, how in _derivations(run):
        block, name = path.split(".")
        if getattr(getattr(run, block), name) is None:
            values[path] = Given(value, f"derived: {how}")
    return values


def _derivations(run: RunConfig) -> Iterator[tuple[str, int | float, str]]:
    """Path, value, and how the value follows, of each option that means something in this run."""
    model, training, optimizer = run.model, run.training, run.optimizer
    how = "8/3 x hidden_size, a multiple of 64" if model.is_gated else "4 x hidden_size"
    yield "model.ffn_hidden_size", model.ffn_size, how
    yield "model.kv_channels", model.head_size, "hidden_size / num_attention_heads"
    yield "model.num_query_groups", model.num_kv_heads, "num_attention_heads"
    if model.has_learned_positions:
        yield "model.max_position_embeddings", model.num_positions, "seq_length"
    if model.residual_connection == "deepnorm":
        yield "model.deepnorm_alpha", model.residual_alpha, "(2 x num_layers)^(1/4)"
        yield "model.deepnorm_beta", model.branch_init_gain, "(8 x num_layers)^(-1/4)"
    if training.recompute == "full" and training.recompute_method == "uniform":
        yield "training.recompute_num_layers", 1, "chunks of one layer"
    if optimizer.lr_decay_style != "constant" or optimizer.lr_warmup_fraction is not None:
        yield "optimizer.lr_decay_iters", training.train_iters, "train_iters"
