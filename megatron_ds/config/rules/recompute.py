"""Rules about what the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.rules.common import HIDDEN, TP, divisible
from megatron_ds.config.rules.shapes import hidden_size_fits
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem


def one_granularity(settings: Settings) -> Iterator[Problem]:
    """Whole layers are recomputed, or the core of attention."""
    found = settings.recompute_sources
    if len(found) > 1:
        paths = [path for each in found.values() for path in each]
        yield Problem(
            f"{' and '.join(settings.source(path).name for path in paths)} ask for different recomputation",
            settings.sources(*paths),
            "keep one: --recompute-granularity full (whole layers) or selective (the core of attention)",
        )


def saved_inputs_are_those_of_layers(settings: Settings) -> Iterator[Problem]:
    """What can be cut or moved is the input of a recomputed layer."""
    for name in ("distribute_saved_activations", "checkpoint_in_cpu"):
        found = settings.recompute_sources
        if settings.value(f"training.{name}") and "full" not in found:
            paths = [path for each in found.values() for path in each]
            yield Problem(
                f"{name} is about the inputs of recomputed layers, and no layers are recomputed",
                settings.sources(f"training.{name}", *paths),
                f"add --recompute-granularity full, or leave {name} out",
            )


def saved_inputs_are_cut_evenly(settings: Settings) -> Iterator[Problem]:
    """Each tensor-parallel rank keeps an equal share."""
    if settings.value("training.distribute_saved_activations"):
        rule = "with distribute_saved_activations each tensor-parallel rank keeps an equal share of a layer's input"
        yield from divisible(settings, HIDDEN, TP, rule, hidden_size_fits)


def saved_inputs_are_whole(settings: Settings) -> Iterator[Problem]:
    """Under sequence parallelism each rank has a share of a layer's input already."""
    path, sequence = "training.distribute_saved_activations", "parallel.sequence_parallel"
    if settings.value(path) and settings.value(sequence):
        yield Problem(
            "distribute_saved_activations can't be with sequence_parallel, under which each tensor-parallel rank has "
            "its own tokens of a layer's input and keeps those",
            settings.sources(path, sequence),
            "leave distribute_saved_activations out: sequence_parallel keeps no more",
        )


def recomputed_layers_exist(settings: Settings) -> Iterator[Problem]:
    """The block method says how many layers of a stage; neither method has more than there are."""
    path, method = "training.recompute_num_layers", "training.recompute_method"
    number, layers = settings.value(path), settings.value("model.num_layers")
    if "full" not in settings.recompute_sources:
        return
    if number is None and settings.value(method) == "block":
        yield Problem(
            "recompute_method block doesn't say how many layers of each stage are recomputed",
            settings.sources(method),
            "give --recompute-num-layers, or use recompute_method uniform",
        )
    if number and layers and number > layers:
        yield Problem(
            f"recompute_num_layers {number} is more than the model's {layers} layers",
            settings.sources(path, "model.num_layers"),
            f"use {layers} or less",
        )
