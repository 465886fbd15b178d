"""Rules about how the model is spread over processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from megatron_ds.config.blocks import GATED_ACTIVATIONS
from megatron_ds.config.partition import LAYER_CLASSES, counted_layers, even_counts, matching_classes
from megatron_ds.config.rules.common import GROUPS, HEADS, HIDDEN, PP, TP, ZERO, divisible
from megatron_ds.config.rules.shapes import ffn_size, head_size, head_size_sources, heads_fit, seq_length_fits
from megatron_ds.config.settings import Settings, wrong_value
from megatron_ds.errors import Problem, Source
from megatron_ds.utils.text import counted

_METHOD = "parallel.pp_partition_method"


def processes_hold_whole_models(settings: Settings) -> Iterator[Problem]:
    """TP x PP divides the number of processes."""
    world, ranks = settings.world_size, settings.model_ranks
    if world % ranks:
        below = world // ranks * ranks
        counts = f"{below} or {below + ranks}" if below else str(ranks)
        layout = f"TP {settings.value(TP)} x PP {settings.value(PP)} = {ranks}"
        yield Problem(
            f"{counted(world, 'process', 'processes')} can't be shared out: {layout} doesn't divide {world}",
            (*settings.sources(TP, PP), Source("processes", str(world), settings.world_origin)),
            f"start {counts} processes, or change TP or PP",
        )


def tp_divides_heads(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share heads evenly."""
    rule = "each tensor-parallel rank has the same number of heads"
    yield from divisible(settings, HEADS, TP, rule, heads_fit)


def tp_divides_ffn(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share the MLP's columns evenly; a derived width follows from the hidden size."""
    hidden, tp = settings.value("model.hidden_size"), settings.value(TP)
    rule = "each tensor-parallel rank has the same number of columns of the MLP"
    if settings.value("model.ffn_hidden_size") is not None:
        yield from divisible(settings, "model.ffn_hidden_size", TP, rule)
        return
    width = ffn_size(settings, hidden) if hidden else 0
    if width % tp:
        factor = "8/3" if settings.value("model.activation") in GATED_ACTIVATIONS else "4"
        yield Problem(
            f"MLP width {factor} x hidden_size {hidden} = {width} is not a multiple of tensor_model_parallel_size "
            f"{tp}: {rule}",
            settings.sources(HIDDEN, "model.activation", TP),
            "give --ffn-hidden-size, or another hidden size or TP",
        )


def tp_fits_groups(settings: Settings) -> Iterator[Problem]:
    """Ranks have whole heads of keys and values, or share one of them evenly."""
    groups, tp = settings.value(GROUPS), settings.value(TP)
    if not groups or groups % tp == 0:
        return
    if tp % groups:
        yield Problem(
            f"num_query_groups {groups} and tensor_model_parallel_size {tp} don't divide one another: each rank has "
            "the same number of heads of keys and values, or each of those is shared by the same number of ranks",
            settings.sources(GROUPS, TP),
            f"use a TP that divides {groups} or is a multiple of it",
        )
        return
    width, ranks = head_size(settings), tp // groups
    if width and width % ranks:
        yield Problem(
            f"with num_query_groups {groups} and TP {tp}, {ranks} ranks share a head of keys and values, and its width "
            f"{width} is not a multiple of {ranks}",
            (*settings.sources(GROUPS, TP), *head_size_sources(settings)),
            f"use a TP that divides {groups if groups > 1 else width}, or "
            + (f"{groups} x a number that divides {width}, or " if groups > 1 else "")
            + f"a head width that {ranks} divides",
        )


def tp_divides_sequence(settings: Settings) -> Iterator[Problem]:
    """With sequence parallelism, tensor-parallel ranks have slices of a sample of the same length."""
    if settings.value("parallel.sequence_parallel"):
        rule = "with sequence_parallel each rank has as many tokens of a sample"
        yield from divisible(settings, "model.seq_length", TP, rule, seq_length_fits)


def stages_have_layers(settings: Settings) -> Iterator[Problem]:
    """Every stage has a layer; where they are counted out, the first and the last stage can do without."""
    layers, stages = settings.value("model.num_layers"), settings.value(PP)
    if not layers:
        return
    if _layer_counts(settings) is None and layers < stages:
        least, rule = stages, "each stage has at least one, unless they are counted out"
        counted_out = ",".join(map(str, even_counts(layers, stages))) if layers >= stages - 2 else ""
        more = f", or count them out: --pp-partition-method layers:{counted_out}" if counted_out else ""
    elif layers < stages - 2:
        least, rule, more = stages - 2, "each stage but the first and the last has at least one", ""
    else:
        return
    yield Problem(
        f"{counted(layers, 'transformer layer')} can't fill {stages} pipeline stages: {rule}",
        settings.sources("model.num_layers", PP, _METHOD),
        f"use {_at_most('pipeline size', layers + stages - least)}, or at least {counted(least, 'layer')} (uneven "
        f"stages are legal){more}",
    )


def _at_most(what: str, number: int) -> str:
    return f"{what} 1" if number == 1 else f"a {what} of at most {number}"


def _layer_counts(settings: Settings) -> list[int] | None:
    """The layers of each stage where the user counts them out; None also where that went wrong."""
    try:
        return counted_layers(settings.value(_METHOD))
    except ValueError:
        return None


def partition_method_is_known(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed knows three ways to deal layers to stages; the user may count them out as well."""
    method: str = settings.value(_METHOD)
    if method.lower() in ("uniform", "parameters"):
        return
    try:
        counts = counted_layers(method)
    except ValueError as error:
        advice = f"write for instance {_example(settings)}"
        yield wrong_value("pp_partition_method", method, settings.origin(_METHOD), f"layers: and {error}", advice)
        return
    if counts is not None:
        yield from _counted_layers_problems(settings, counts)
        return
    kind, _, pattern = method.partition(":")
    if kind.lower() != "type" or not pattern:
        yield Problem(
            f"pp_partition_method {method!r} is unknown",
            settings.sources(_METHOD),
            "use uniform, parameters, layers:N,N,… or type:REGEX, for instance type:transformer",
        )
        return
    try:
        if not matching_classes(pattern, LAYER_CLASSES):
            yield no_layer_matches(method, LAYER_CLASSES, settings.sources(_METHOD))
    except re.error as error:
        yield Problem(
            f"pp_partition_method {method!r}: no regular expression ({error})",
            settings.sources(_METHOD),
            "type:transformer is the usual one",
        )


def no_layer_matches(method: str, classes: Sequence[str], sources: tuple[Source, ...] = ()) -> Problem:
    """The problem of a ``type:REGEX`` that is found in no layer's class name.

    Args:
        method: the value of ``pp_partition_method``.
        classes: names of the classes that layers have.
        sources: where the method was given, if that is known.
    """
    advice = f"use a pattern that is in one of {', '.join(classes)}; type:transformer is the usual one"
    return Problem(f"pp_partition_method {method!r} matches no layer of the model", sources, advice)


def _counted_layers_problems(settings: Settings, counts: Sequence[int]) -> Iterator[Problem]:
    layers, stages = settings.value("model.num_layers"), settings.value(PP)
    sources = settings.sources(_METHOD, "model.num_layers", PP)
    if layers is None or layers < stages - 2:
        return  # reported elsewhere
    advice = f"write for instance {_example(settings)}"
    if len(counts) != stages:
        yield Problem(
            f"pp_partition_method has numbers for {counted(len(counts), 'stage')}, and the pipeline has {stages}",
            sources,
            advice,
        )
    elif sum(counts) != layers:
        yield Problem(
            f"pp_partition_method deals out {' + '.join(map(str, counts))} = "
            f"{counted(sum(counts), 'transformer layer')}, and the model has {layers}",
            sources,
            advice,
        )
    elif 0 in counts[1:-1]:
        stage = counts.index(0, 1)
        yield Problem(
            f"pp_partition_method leaves stage {stage} (counted from 0) without a layer; only the first stage, which "
            "has the embeddings, and the last, which has the head, can do without transformer layers",
            sources,
            advice,
        )


def _example(settings: Settings) -> str:
    """Layers counted out so that it works; any example where nothing does."""
    layers, stages = settings.value("model.num_layers"), settings.value(PP)
    fits = layers is not None and layers >= max(1, stages - 2)
    return "layers:" + ",".join(map(str, even_counts(layers, stages) if fits else [1] * stages))


def zero_fits_pipeline(settings: Settings) -> Iterator[Problem]:
    """Stages 2 and 3 shard gradients, which a pipeline sums over micro-batches."""
    stage, stages = settings.value(ZERO), settings.value(PP)
    if stage in (2, 3) and stages > 1:
        yield Problem(
            f"ZeRO stage {stage} can't run with a pipeline of {stages} stages, which sums its gradients over all "
            "micro-batches of a step before they are shared out",
            settings.sources(ZERO, PP),
            f"three ways out: ZeRO-1 with this pipeline; or pipeline size 1 with ZeRO-{stage}; or pipeline size 1, "
            f"ZeRO-{stage} and tensor parallelism in the pipeline's place (TP "
            f"{settings.value(TP)} -> {settings.model_ranks})",
        )


def zero_stage_0_is_fp32(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed's gradient norm is wrong for stage 0 in bf16 and fp16. In fp32 ours takes its place."""
    if settings.value(ZERO) == 0 and settings.precision != "fp32":
        yield Problem(
            f"ZeRO stage 0 can't run with {settings.precision}: DeepSpeed's gradient norm and clipping are wrong there",
            (settings.source(ZERO), settings.source(f"training.{settings.precision}")),
            "use ZeRO stage 1, at any data-parallel size (also 1), or leave the stage out",
        )
