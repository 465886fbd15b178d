"""The rules that involve more than one option. Each is a function from settings to problems; all of them always run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from megatron_ds.config.blocks import GATED_ACTIVATIONS, default_ffn_size, rotary_width
from megatron_ds.config.catalog import all_options
from megatron_ds.config.checkpoint_rules import CHECKPOINT_RULES
from megatron_ds.config.partition import counted_layers, even_counts
from megatron_ds.config.settings import Settings, wrong_value
from megatron_ds.errors import Problem, Source

Rule = Callable[[Settings], Iterator[Problem]]

_TP = "parallel.tensor_model_parallel_size"
_PP = "parallel.pipeline_model_parallel_size"
_ZERO = "parallel.zero_stage"
_GROUPS = "model.num_query_groups"
_POSITIONS = "model.position_embedding_type"
_RESIDUAL = "model.residual_connection"
_SCALING = "model.use_rope_scaling"
_SCALING_NUMBERS = tuple(
    f"model.{name}"
    for name in ("rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_positions")
)
_ROTARY = (
    *(f"model.rotary_{name}" for name in ("base", "percent", "interleaved", "seq_len_interpolation_factor")),
    _SCALING,
)
_DEEPNORM = ("model.deepnorm_alpha", "model.deepnorm_beta")


def processes_hold_whole_models(settings: Settings) -> Iterator[Problem]:
    """TP x PP divides the number of processes."""
    world, ranks = settings.world_size, settings.model_ranks
    if world % ranks:
        below = world // ranks * ranks
        counts = f"{below} or {below + ranks}" if below else str(ranks)
        layout = f"TP {settings.value(_TP)} x PP {settings.value(_PP)} = {ranks}"
        yield Problem(
            f"{world} process{'es' if world > 1 else ''} can't be shared out: {layout} doesn't divide {world}",
            (*settings.sources(_TP, _PP), Source("processes", str(world), "WORLD_SIZE")),
            f"start {counts} processes, or change TP or PP",
        )


def _divisible(settings: Settings, path: str, by: str, rule: str) -> Iterator[Problem]:
    number, divisor = settings.value(path), settings.value(by)
    if number and divisor and number % divisor:
        names = settings.source(path).name, settings.source(by).name
        below, above = number // divisor * divisor, (number // divisor + 1) * divisor
        ways = f"{below} or {above}" if below else str(above)
        yield Problem(
            f"{names[0]} {number} is not a multiple of {names[1]} {divisor}: {rule}",
            settings.sources(path, by),
            f"use {names[0]} {ways}, or another {names[1]}",
        )


def heads_divide_hidden_size(settings: Settings) -> Iterator[Problem]:
    """Every head has the same width."""
    if settings.value("model.kv_channels") is None:
        yield from _divisible(
            settings, "model.hidden_size", "model.num_attention_heads", "all attention heads have the same width"
        )


def tp_divides_heads(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share heads evenly."""
    yield from _divisible(
        settings, "model.num_attention_heads", _TP, "each tensor-parallel rank has the same number of heads"
    )


def tp_divides_ffn(settings: Settings) -> Iterator[Problem]:
    """Tensor-parallel ranks share the MLP's columns evenly; a derived width follows from the hidden size."""
    hidden, tp = settings.value("model.hidden_size"), settings.value(_TP)
    rule = "each tensor-parallel rank has the same number of columns of the MLP"
    if settings.value("model.ffn_hidden_size") is not None:
        yield from _divisible(settings, "model.ffn_hidden_size", _TP, rule)
        return
    gated = settings.value("model.activation") in GATED_ACTIVATIONS
    width = default_ffn_size(hidden, gated=gated) if hidden else 0
    if width % tp:
        factor = "8/3" if gated else "4"
        yield Problem(
            f"MLP width {factor} x hidden_size {hidden} = {width} is not a multiple of tensor_model_parallel_size "
            f"{tp}: {rule}",
            settings.sources("model.hidden_size", _TP),
            "give --ffn-hidden-size, or another hidden size or TP",
        )


def groups_divide_heads(settings: Settings) -> Iterator[Problem]:
    """Each head of keys and values serves the same number of attention heads."""
    yield from _divisible(
        settings, "model.num_attention_heads", _GROUPS, "each group of attention heads has the same number of them"
    )


def tp_fits_groups(settings: Settings) -> Iterator[Problem]:
    """Ranks have whole heads of keys and values, or share one of them evenly."""
    groups, tp = settings.value(_GROUPS), settings.value(_TP)
    if not groups or groups % tp == 0:
        return
    if tp % groups:
        yield Problem(
            f"num_query_groups {groups} and tensor_model_parallel_size {tp} don't divide one another: each rank has "
            "the same number of heads of keys and values, or each of those is shared by the same number of ranks",
            settings.sources(_GROUPS, _TP),
            f"use a TP that divides {groups} or is a multiple of it",
        )
        return
    width, ranks = _head_size(settings), tp // groups
    if width and width % ranks:
        yield Problem(
            f"{ranks} ranks share each of {groups} heads of keys and values, and its width {width} is not a multiple "
            f"of {ranks}",
            settings.sources(_GROUPS, _TP),
            f"use a TP of at most {groups}, or a head width that {ranks} divides",
        )


def _head_size(settings: Settings) -> int | None:
    """The width of a head; None while it isn't known, or is no whole number."""
    width: int | None = settings.value("model.kv_channels")
    hidden, heads = settings.value("model.hidden_size"), settings.value("model.num_attention_heads")
    if width is None and hidden and heads and hidden % heads == 0:
        width = hidden // heads
    return width


def rotated_width_is_even(settings: Settings) -> Iterator[Problem]:
    """Rotary embeddings turn pairs of numbers."""
    width, percent = _head_size(settings), settings.value("model.rotary_percent")
    if settings.value(_POSITIONS) != "rope" or width is None:
        return
    rotated = rotary_width(width, percent)
    if rotated % 2 or rotated == 0:
        yield Problem(
            f"rotary embeddings turn pairs of numbers, and {percent} of a head's width {width} is {rotated}",
            settings.sources("model.rotary_percent", "model.hidden_size", "model.num_attention_heads"),
            "use a --rotary-percent, or a head width, that gives an even number of at least 2",
        )


def _given_in_vain(settings: Settings, paths: Iterable[str], needed: str, wanted: str) -> Iterator[Problem]:
    """Options that say something, other than the default, about a choice that was not made."""
    for path in paths:
        if path in settings and settings.value(path) != all_options()[path].default:
            name, choice = settings.source(path).name, settings.source(needed)
            yield Problem(
                f"{name} is given, and {choice.name} is {choice.value}: {name} says how {wanted} works",
                settings.sources(path, needed),
                f"give {wanted}, or leave {name} out (its default is {all_options()[path].default})",
            )


def rotary_options_have_rope(settings: Settings) -> Iterator[Problem]:
    """Options of rotary embeddings need them."""
    if settings.value(_POSITIONS) != "rope":
        yield from _given_in_vain(settings, _ROTARY, _POSITIONS, "--position-embedding-type rope")


def rope_scaling_options_have_scaling(settings: Settings) -> Iterator[Problem]:
    """The numbers of Llama 3's scaling need its switch."""
    if not settings.value(_SCALING):
        yield from _given_in_vain(settings, _SCALING_NUMBERS, _SCALING, "--use-rope-scaling")


def one_rope_scaling(settings: Settings) -> Iterator[Problem]:
    """Positions are scaled in one way."""
    linear = "model.rotary_seq_len_interpolation_factor"
    if settings.value(_SCALING) and settings.value(linear) is not None:
        yield Problem(
            "use_rope_scaling and rotary_seq_len_interpolation_factor are both given: positions are scaled in one way",
            settings.sources(_SCALING, linear),
            "keep Llama 3's scaling or the linear one",
        )


def rope_scaling_factors_are_ordered(settings: Settings) -> Iterator[Problem]:
    """Between the two wavelengths the scaling changes smoothly, so they are in order."""
    low, high = "model.rope_low_freq_factor", "model.rope_high_freq_factor"
    if settings.value(_SCALING) and settings.value(low) >= settings.value(high):
        yield Problem(
            f"rope_low_freq_factor {settings.value(low)} is not below rope_high_freq_factor {settings.value(high)}",
            settings.sources(low, high),
            "Llama 3 has 1 and 4",
        )


def deepnorm_options_have_deepnorm(settings: Settings) -> Iterator[Problem]:
    """DeepNorm's factors need DeepNorm."""
    if settings.value(_RESIDUAL) != "deepnorm":
        yield from _given_in_vain(settings, _DEEPNORM, _RESIDUAL, "--residual-connection deepnorm")


def fp32_residual_is_before_norms(settings: Settings) -> Iterator[Problem]:
    """Where norms stand on the residual stream, the stream is what the layers compute in."""
    path = "model.fp32_residual_connection"
    if settings.value(path) and settings.value(_RESIDUAL) in ("post_ln", "deepnorm"):
        yield Problem(
            f"fp32_residual_connection can't be with residual_connection {settings.value(_RESIDUAL)}: there the "
            "stream comes out of a norm, in the precision of the layers",
            settings.sources(path, _RESIDUAL),
            "leave --fp32-residual-connection out, or use pre_ln or parallel",
        )


def tp_divides_sequence(settings: Settings) -> Iterator[Problem]:
    """With sequence parallelism, tensor-parallel ranks have slices of a sample of the same length."""
    if settings.value("parallel.sequence_parallel"):
        yield from _divisible(
            settings, "model.seq_length", _TP, "with sequence_parallel each rank has as many tokens of a sample"
        )


def prefix_has_the_sample_to_itself(settings: Settings) -> Iterator[Problem]:
    """A prefix is the beginning of a whole sample, all of it seen."""
    for path in ("data.reset_position_ids", "data.reset_attention_mask", "model.window_size"):
        if settings.value("model.prefix_lm") and settings.value(path):
            name = settings.source(path).name
            yield Problem(
                f"prefix_lm can't be with {name}: a prefix is the beginning of a whole sample, and all of it is seen",
                settings.sources("model.prefix_lm", path),
                f"leave --prefix-lm or --{name.replace('_', '-')} out",
            )


def padded_vocabulary_is_shared_evenly(settings: Settings) -> Iterator[Problem]:
    """A given padded size is cut evenly; a divisor that somebody asked for divides it too, as in BLOOM's fork."""
    path, divisor = "model.pad_vocab_size_to", "model.make_vocab_size_divisible_by"
    yield from _divisible(settings, path, _TP, "each tensor-parallel rank has the same number of rows")
    # The default of the divisor is nobody's wish.
    if divisor in settings:
        yield from _divisible(settings, path, divisor, "that is what the second option asks for")


def padded_vocabulary_holds_all_ids(settings: Settings) -> Iterator[Problem]:
    """Padding adds rows. A vocabulary whose size the tokenizer says is compared when that is known."""
    size, padded = settings.value("model.vocab_size"), settings.value("model.pad_vocab_size_to")
    if size and padded and padded < size:
        yield too_little_padding(size, settings.source("model.pad_vocab_size_to"), settings.sources("model.vocab_size"))


def too_little_padding(vocab_size: int, padded: Source, sources: tuple[Source, ...] = ()) -> Problem:
    """The problem of a padded size that is less than the vocabulary.

    Args:
        vocab_size: number of ids in use.
        padded: the value of ``pad_vocab_size_to``.
        sources: where the vocabulary size comes from, if an option says it.
    """
    return Problem(
        f"pad_vocab_size_to {padded.value} is less than the vocabulary of {vocab_size} ids",
        (padded, *sources),
        f"use {vocab_size} or more, or leave pad_vocab_size_to out",
    )


def stages_have_layers(settings: Settings) -> Iterator[Problem]:
    """Every stage has a layer; uneven stages are legal."""
    layers, stages = settings.value("model.num_layers"), settings.value(_PP)
    if layers and layers < stages:
        yield Problem(
            f"{layers} transformer layer{'s' if layers > 1 else ''} can't fill {stages} pipeline stages: "
            "each stage has at least one",
            settings.sources("model.num_layers", _PP),
            f"use a pipeline size of at most {layers}, or at least {stages} layers (uneven stages are legal)",
        )


def zero_fits_pipeline(settings: Settings) -> Iterator[Problem]:
    """Stages 2 and 3 shard gradients, which a pipeline sums over micro-batches."""
    stage, stages = settings.value(_ZERO), settings.value(_PP)
    if stage in (2, 3) and stages > 1:
        yield Problem(
            f"ZeRO stage {stage} can't run with a pipeline of {stages} stages, which sums its gradients over all "
            "micro-batches of a step before they are shared out",
            settings.sources(_ZERO, _PP),
            f"three ways out: ZeRO-1 with this pipeline; or pipeline size 1 with ZeRO-{stage}; or pipeline size 1, "
            f"ZeRO-{stage} and tensor parallelism in the pipeline's place (TP "
            f"{settings.value(_TP)} -> {settings.model_ranks})",
        )


def zero_stage_0_is_fp32(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed's gradient norm is wrong for stage 0 in bf16 and fp16. In fp32 ours takes its place."""
    if settings.value(_ZERO) == 0 and settings.precision != "fp32":
        yield Problem(
            f"ZeRO stage 0 can't run with {settings.precision}: DeepSpeed's gradient norm and clipping are wrong there",
            (settings.source(_ZERO), settings.source(f"training.{settings.precision}")),
            "use ZeRO stage 1, at any data-parallel size (also 1), or leave the stage out",
        )


def one_precision(settings: Settings) -> Iterator[Problem]:
    """bf16 or fp16, not both."""
    if settings.value("training.bf16") and settings.value("training.fp16"):
        yield Problem(
            "bf16 and fp16 are both on: a run has one precision",
            settings.sources("training.bf16", "training.fp16"),
            "keep bf16 (no loss scaling; needs Ampere or newer, or a CPU) or fp16",
        )


def fp16_scales_are_powers(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed takes the first scale as a power of two, and the least one as a whole number."""
    if not settings.value("training.fp16"):
        return
    scale = settings.value("training.initial_loss_scale")
    if 2.0 ** (int(scale).bit_length() - 1) != scale:
        yield Problem(
            f"initial_loss_scale {scale} is not a power of two",
            settings.sources("training.initial_loss_scale"),
            f"use {2 ** (int(scale).bit_length() - 1)} or {2 ** int(scale).bit_length()}",
        )
    least = settings.value("training.min_loss_scale")
    if not float(least).is_integer():
        yield Problem(
            f"min_loss_scale {least} is not a whole number, which DeepSpeed wants",
            settings.sources("training.min_loss_scale"),
            "use 1 or more",
        )


def sequence_fits_positions(settings: Settings) -> Iterator[Problem]:
    """There is a position embedding for each token of a sample."""
    sequence, positions = settings.value("model.seq_length"), settings.value("model.max_position_embeddings")
    if settings.value(_POSITIONS) == "learned_absolute" and sequence and positions and sequence > positions:
        yield Problem(
            f"seq_length {sequence} is more than max_position_embeddings {positions}",
            settings.sources("model.seq_length", "model.max_position_embeddings"),
            f"use a sequence length of at most {positions}, or more positions",
        )


def one_warmup(settings: Settings) -> Iterator[Problem]:
    """Warm-up is a number of steps or a share."""
    steps, share = settings.value("optimizer.lr_warmup_iters"), settings.value("optimizer.lr_warmup_fraction")
    if steps and share is not None:
        yield Problem(
            "lr_warmup_iters and lr_warmup_fraction are both given",
            settings.sources("optimizer.lr_warmup_iters", "optimizer.lr_warmup_fraction"),
            "keep one of the two",
        )


def warmup_ends_before_decay(settings: Settings) -> Iterator[Problem]:
    """The decay begins where warm-up ends; without a decay of its own length, that is the whole run.

    --lr-decay-iters says how long the schedule is, so that a run may stop earlier, even within the warm-up.
    """
    warmup = settings.value("optimizer.lr_warmup_iters")
    decays = settings.value("optimizer.lr_decay_style") != "constant"
    given = decays and settings.value("optimizer.lr_decay_iters") is not None
    path = "optimizer.lr_decay_iters" if given else "training.train_iters"
    end = settings.value(path)
    if end and warmup > end:
        what = "decay, which ends" if decays else "run, which ends"
        later = "--lr-decay-iters" if decays else "--train-iters"
        yield Problem(
            f"warm-up of {warmup} steps is longer than the {what} at step {end}",
            settings.sources("optimizer.lr_warmup_iters", path),
            f"warm up for at most {end} steps, or give a later {later}",
        )


def min_lr_is_below_lr(settings: Settings) -> Iterator[Problem]:
    """The learning rate decays; it doesn't grow."""
    peak, floor = settings.value("optimizer.lr"), settings.value("optimizer.min_lr")
    if peak is not None and floor > peak:
        yield Problem(
            f"min_lr {floor} is more than lr {peak}",
            settings.sources("optimizer.min_lr", "optimizer.lr"),
            "min_lr is where the decay from lr ends: swap them, or leave min_lr out",
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
    layers, stages = settings.value("model.num_layers"), settings.value(_PP)
    sources = settings.sources(path, "model.num_layers", _PP)
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
        yield from _divisible(settings, "model.hidden_size", _TP, rule)


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


def attention_backend_fits(settings: Settings) -> Iterator[Problem]:
    """Kernels differ in what they can do."""
    path = "training.attention_backend"
    backend = settings.value(path)
    dropout = settings.value("model.attention_dropout")
    if backend == "flex" and dropout:
        yield Problem(
            f"attention_backend flex has no dropout, and attention_dropout is {dropout}",
            settings.sources(path, "model.attention_dropout"),
            "set --attention-dropout 0, or leave --attention-backend out: with dropout it takes SDPA and a mask",
        )
    hidden, heads = settings.value("model.hidden_size"), settings.value("model.num_attention_heads")
    head_size = settings.value("model.kv_channels") or (hidden // heads if hidden and heads else None)
    if backend == "flex" and head_size is not None and head_size < 16:
        yield Problem(
            f"attention_backend flex takes heads of at least 16, and these have {head_size}",
            settings.sources(path, "model.hidden_size", "model.num_attention_heads", "model.kv_channels"),
            "use fewer heads, or leave --attention-backend out",
        )
    if backend in ("flash", "cudnn") and settings.precision == "fp32":
        yield Problem(
            f"attention_backend {backend} takes 16-bit numbers only, and this run is in fp32",
            settings.sources(path),
            "use --bf16, or leave --attention-backend out",
        )
    masked = [
        name
        for name, on in (
            ("data.reset_attention_mask", settings.value("data.reset_attention_mask")),
            ("model.prefix_lm", settings.value("model.prefix_lm")),
            ("model.window_size", settings.value("model.window_size") is not None),
            ("model.position_embedding_type", settings.value("model.position_embedding_type") == "alibi"),
        )
        if on
    ]
    if backend == "flash" and masked:
        yield Problem(
            f"attention_backend flash knows no mask, which {settings.source(masked[0]).name} needs",
            settings.sources(path, *masked),
            "use --attention-backend flex, or leave it out",
        )


def attention_backend_on_cpu(settings: Settings) -> Iterator[Problem]:
    """A CPU has PyTorch's own kernel and the plain one; flex attention has no backward pass there."""
    path = "training.attention_backend"
    backend = settings.value(path)
    if backend not in ("auto", "math"):
        yield Problem(
            f"attention_backend {backend} needs a GPU; this run will be on CPU (DS_ACCELERATOR, or no device found)",
            settings.sources(path),
            "leave --attention-backend out",
        )


RULES: tuple[Rule, ...] = (
    processes_hold_whole_models,
    heads_divide_hidden_size,
    tp_divides_heads,
    tp_divides_ffn,
    tp_divides_sequence,
    groups_divide_heads,
    tp_fits_groups,
    rotated_width_is_even,
    rotary_options_have_rope,
    rope_scaling_options_have_scaling,
    one_rope_scaling,
    rope_scaling_factors_are_ordered,
    prefix_has_the_sample_to_itself,
    deepnorm_options_have_deepnorm,
    fp32_residual_is_before_norms,
    padded_vocabulary_is_shared_evenly,
    padded_vocabulary_holds_all_ids,
    stages_have_layers,
    partition_method_is_known,
    zero_fits_pipeline,
    zero_stage_0_is_fp32,
    one_precision,
    fp16_scales_are_powers,
    one_granularity,
    saved_inputs_are_those_of_layers,
    saved_inputs_are_cut_evenly,
    saved_inputs_are_whole,
    recomputed_layers_exist,
    sequence_fits_positions,
    one_warmup,
    warmup_ends_before_decay,
    min_lr_is_below_lr,
    attention_backend_fits,
    *CHECKPOINT_RULES,
)


def broken_rules(settings: Settings) -> list[Problem]:
    """Every problem that every rule finds; rules skip what is not known.

    Args:
        settings: the options.

    Returns:
        The problems, in the order of the rules.
    """
    return [problem for rule in RULES for problem in rule(settings)]


def fp16_on_cpu(settings: Settings) -> Problem:
    """The problem of fp16 on a CPU."""
    return Problem(
        "fp16 needs a GPU, and this run will be on CPU (DS_ACCELERATOR, or no device found)",
        settings.sources("training.fp16"),
        "use --bf16, or fp32 (neither of the two flags)",
    )
