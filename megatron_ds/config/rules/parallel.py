"""Rules about how the model is spread over processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from megatron_ds.config.blocks import GATED_ACTIVATIONS, default_ffn_size
from megatron_ds.config.partition import counted_layers, even_counts
from megatron_ds.config.rules.common import GROUPS, PP, TP, ZERO, divisible, head_size
from megatron_ds.config.settings import Settings, wrong_value
from megatron_ds.errors import Problem, Source


def processes_hold_whole_models(settings: Settings) -> Iterator[Problem]:
    """TP x PP divides the number of processes."""
    world, ranks = settings.world_size, settings.model_ranks
    if world % ranks:
        below = world // ranks * ranks
        counts = f"{below} or {below + ranks}" if below else str(ranks)
        layout = f"TP {settings.value(TP)} x PP {settings.value(PP)} = {ranks}"
        yield Problem(
            f"{world} process{'es' if world > 1 else ''} can't be shared out: {layout} doesn't divide {world}",
            (*settings.sources(TP, PP), Source("processes", str(world), "WORLD_SIZE")),
            f"start {counts} processes, or change TP or PP",
        )


def tp_divides_heads(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share heads evenly."""
    yield from divisible(
        settings, "model.num_attention_heads", TP, "each tensor-parallel rank has the same number of heads"
    )


def tp_divides_ffn(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share the MLP's columns evenly; a derived width follows from the hidden size."""
    hidden, tp = settings.value("model.hidden_size"), settings.value(TP)
    rule = "each tensor-parallel rank has the same number of columns of the MLP"
    if settings.value("model.ffn_hidden_size") is not None:
        yield from divisible(settings, "model.ffn_hidden_size", TP, rule)
        return
    gated = settings.value("model.activation") in GATED_ACTIVATIONS
    width = default_ffn_size(hidden, gated=gated) if hidden else 0
    if width % tp:
        factor = "8/3" if gated else "4"
        yield Problem(
            f"MLP width {factor} x hidden_size {hidden} = {width} is not a multiple of tensor_model_parallel_size "
            f"{tp}: {rule}",
            settings.sources("model.hidden_size", TP),
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
            f"{ranks} ranks share each of {groups} heads of keys and values, and its width {width} is not a multiple "
            f"of {ranks}",
            settings.sources(GROUPS, TP),
            f"use a TP of at most {groups}, or a head width that {ranks} divides",
        )


def tp_divides_sequence(settings: Settings) -> Iterator[Problem]:
    """With sequence parallelism, tensor-parallel ranks have slices of a sample of the same length."""
    if settings.value("parallel.sequence_parallel"):
        yield from divisible(
            settings, "model.seq_length", TP, "with sequence_parallel each rank has as many tokens of a sample"
        )


def stages_have_layers(settings: Settings) -> Iterator[Problem]:
    """Every stage has a layer; uneven stages are legal."""
    layers, stages = settings.value("model.num_layers"), settings.value(PP)
    if layers and layers < stages:
        yield Problem(
            f"{layers} transformer layer{'s' if layers > 1 else ''} can't fill {stages} pipeline stages: "
            "each stage has at least one",
            settings.sources("model.num_layers", PP),
            f"use a pipeline size of at most {layers}, or at least {stages} layers (uneven stages are legal)",
        )


def partition_method_is_known(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed knows three ways to deal layers to stages; the user may count them out as well."""
    path = "parallel.pp_partition_method"
    method: str = settings.value(path)
    if method.lower() in ("uniform", "parameters"):
        return
    try:
        counts = counted_layers(method)
    except ValueError as error:
        yield wrong_value("pp_partition_method", method, settings.origin(path), f"layers: and {error}")
        return
    if counts is not None:
        yield from _counted_layers_problems(settings, path, counts)
        return
    kind, _, pattern = method.partition(":")
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(f"pp_partition_method {method!r}: no regular expression ({error})", settings.sources(path))
    if kind.lower() != "type" or not pattern:
        yield Problem(
            f"pp_partition_method {method!r} is unknown",
            settings.sources(path),
            "use uniform, parameters, layers:N,N,… or type:REGEX, for instance type:transformer",
        )


def _counted_layers_problems(settings: Settings, path: str, counts: Sequence[int]) -> Iterator[Problem]:
    layers, stages = settings.value("model.num_layers"), settings.value(PP)
    sources = settings.sources(path, "model.num_layers", PP)
    if layers is None or layers < stages:
        return  # reported elsewhere
    advice = f"write for instance layers:{','.join(map(str, even_counts(layers, stages)))}"
    if len(counts) != stages:
        yield Problem(
            f"pp_partition_method has numbers for {len(counts)} stage{'s' if len(counts) > 1 else ''}, and the "
            f"pipeline has {stages}",
            sources,
            advice,
        )
    elif sum(counts) != layers:
        yield Problem(
            f"pp_partition_method deals out {' + '.join(map(str, counts))} = {sum(counts)} transformer layers, and the "
            f"model has {layers}",
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
