"""Options that are given and have no effect in this run: nothing is wrong, but the user may think that they count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from megatron_ds.config.blocks import DOCUMENT_OPTIONS
from megatron_ds.config.catalog import all_options
from megatron_ds.config.partition import counted_layers
from megatron_ds.config.settings import Given, Settings
from megatron_ds.utils.text import counted


@dataclass(frozen=True)
class _Idle:
    """Options that have no effect under a condition.

    Attributes:
        paths: the options.
        applies: tells from the values in force whether they have no effect.
        why: the condition, as the end of a sentence.
    """

    paths: tuple[str, ...]
    applies: Callable[[Settings], bool]
    why: str


_DYNAMIC_SCALE = tuple(
    f"training.{name}" for name in ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
)
# What Llama 3's scaling of positions needs to know besides its factor.
_STRETCH = ("low_freq_factor", "high_freq_factor", "original_max_positions")
_OF_LOAD = tuple(
    f"checkpoint.{name}"
    for name in (
        *("allow_data_change", "load_step", "finetune", "no_load_optim", "no_load_rng"),
        *("override_lr_scheduler", "use_checkpoint_lr_scheduler"),
    )
)
# Options that name the data of one split.
_OWN_PATHS = tuple(
    f"data.{split}_{kind}" for split in ("train", "valid", "test") for kind in ("data_path", "weighted_split_paths")
)
# The tokenizer types that read each of these.
_READERS: Mapping[str, tuple[str, ...]] = {
    "data.tokenizer_name_or_path": ("HFTokenizer",),
    "data.vocab_file": ("GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase"),
    "data.merge_file": ("GPT2BPETokenizer",),
    "data.tokenizer_model": ("SentencePieceTokenizer",),
}


def _is_constant(settings: Settings) -> bool:
    return bool(settings.value("optimizer.lr_decay_style") == "constant")


def _is_other_tokenizer(readers: tuple[str, ...]) -> Callable[[Settings], bool]:
    # Without a type the run is refused later, for that.
    return lambda settings: settings.value("data.tokenizer_type") not in (None, *readers)


def _only(readers: tuple[str, ...]) -> str:
    *others, last = readers
    return f"only {', '.join(others)} and {last} read it" if others else f"only {last} reads it"


def _own_paths(settings: Settings) -> list[str]:
    return [path for path in all_options() if path.endswith(_OWN_PATHS) and settings.value(path)]


_TABLE: tuple[_Idle, ...] = (
    _Idle(
        ("training.loss_scale", "training.max_skipped_steps", *_DYNAMIC_SCALE),
        lambda s: not s.value("training.fp16"),
        "without fp16",
    ),
    _Idle(
        _DYNAMIC_SCALE,
        lambda s: bool(s.value("training.fp16") and s.value("training.loss_scale")),
        "with a fixed loss_scale",
    ),
    _Idle(("optimizer.min_lr",), _is_constant, "with lr_decay_style constant"),
    _Idle(
        ("optimizer.lr_decay_iters",),
        # A share of warm-up is a share of the decay's steps, whatever its shape.
        lambda s: _is_constant(s) and s.value("optimizer.lr_warmup_fraction") is None,
        "with lr_decay_style constant",
    ),
    _Idle(
        ("parallel.pp_partition_method",),
        lambda s: bool(s.value("parallel.pipeline_model_parallel_size") == 1),
        "with a pipeline of one stage",
    ),
    _Idle(
        ("training.recompute_method", "training.recompute_num_layers"),
        lambda s: "full" not in s.recompute_sources,
        "without recompute_granularity full",
    ),
    _Idle(
        ("training.distribute_saved_activations",),
        lambda s: bool(s.value("parallel.tensor_model_parallel_size") == 1),
        "with a tensor-parallel size of 1",
    ),
    _Idle(
        ("parallel.sequence_parallel", "training.check_tp_replicas_interval"),
        lambda s: bool(s.value("parallel.tensor_model_parallel_size") == 1),
        "with a tensor-parallel size of 1",
    ),
    _Idle(
        ("model.max_position_embeddings",),
        lambda s: bool(s.value("model.position_embedding_type") != "learned_absolute"),
        "without learned positions",
    ),
    _Idle(
        ("data.reset_position_ids",),
        lambda s: s.value("model.position_embedding_type") in ("alibi", "none"),
        "with position_embedding_type alibi or none, which count no positions",
    ),
    _Idle(
        ("model.add_qkv_bias",),
        lambda s: not s.value("model.disable_bias_linear"),
        "without disable_bias_linear: all linear layers have biases",
    ),
    _Idle(
        ("model.use_scaled_init_method",),
        lambda s: bool(s.value("model.residual_connection") == "deepnorm"),
        "with deepnorm, which has a factor of its own",
    ),
    _Idle(
        ("model.fp32_residual_connection",),
        lambda s: s.precision == "fp32",
        "without bf16 or fp16: everything is fp32",
    ),
    _Idle(
        ("model.window_size",),
        lambda s: (s.value("model.window_size") or 0) >= (s.value("model.seq_length") or math.inf),
        "with samples no longer than the window",
    ),
    _Idle(
        ("model.use_rope_scaling", *(f"model.rope_{name}" for name in _STRETCH)),
        lambda s: bool(s.value("model.use_rope_scaling") and s.value("model.rope_scaling_factor") == 1),
        "with rope_scaling_factor 1: no wavelength is stretched",
    ),
    _Idle(
        ("model.rotary_seq_len_interpolation_factor",),
        lambda s: bool(s.value("model.rotary_seq_len_interpolation_factor") == 1),
        "at 1: positions are divided by it",
    ),
    _Idle(
        ("model.prefix_lm",),
        lambda s: bool(s.value("model.seq_length") == 1),
        "with samples of one token",
    ),
    _Idle(("logging.wandb_exp_name",), lambda s: s.value("logging.wandb_project") is None, "without wandb_project"),
    _Idle(("training.eval_interval",), lambda s: s.value("training.eval_iters") == 0, "with eval_iters 0"),
    _Idle(
        ("data.eod_id",),
        lambda s: not any(s.value(f"data.{name}") for name in DOCUMENT_OPTIONS),
        f"without any of {', '.join(DOCUMENT_OPTIONS)}",
    ),
    _Idle(
        ("data.mask_prob", "data.bert_mask_type", "data.bert_max_ngram", "data.short_seq_prob"),
        lambda s: bool(s.value("model.model_type") != "bert"),
        "without a model_type of bert",
    ),
    _Idle(
        ("data.bert_max_ngram",),
        lambda s: bool(s.value("data.bert_mask_type") != "ngram"),
        "without bert_mask_type ngram",
    ),
    _Idle(
        (
            *("data.split", "data.data_cache_path", "data.dataloader_type", "data.eod_mask_loss"),
            *("data.mask_prob", "data.bert_mask_type", "data.bert_max_ngram", "data.short_seq_prob"),
        ),
        lambda s: s.value("task.task") is not None,
        "with a task, which has examples of its own",
    ),
    _Idle(
        ("training.eval_iters",),
        lambda s: bool(s.value("task.task") is not None and s.value("training.eval_iters")),
        "with a task, whose sets are evaluated whole; 0 turns that off",
    ),
    _Idle(
        ("task.packing",),
        lambda s: bool(s.value("task.task") != "SFT"),
        "without task SFT",
    ),
    _Idle(("data.split",), lambda s: bool(_own_paths(s)), "without data_path: other options say what is training data"),
    _Idle(
        tuple(path for path in _OF_LOAD if path not in ("checkpoint.finetune", "checkpoint.load_step")),
        lambda s: s.value("checkpoint.load") is None,
        "without load",
    ),
    _Idle(
        tuple(path for path in _OF_LOAD if path not in ("checkpoint.finetune", "checkpoint.load_step")),
        lambda s: bool(s.value("checkpoint.load") is not None and s.value("checkpoint.finetune")),
        "with finetune, which takes the weights only",
    ),
    *(
        _Idle((path,), _is_other_tokenizer(readers), f"with this tokenizer_type: {_only(readers)}")
        for path, readers in _READERS.items()
    ),
)


def idle_notes(given: Mapping[str, Given], settings: Settings, *, on_cpu: bool) -> Iterator[str]:
    """One line for each option that somebody gave and that has no effect.

    Args:
        given: what flags and blocks say, by path; DeepSpeed's keys are not in it, as shared JSONs have many of them.
        settings: the values in force.
        on_cpu: the run will be on CPU.

    Yields:
        Lines such as ``--min-lr has no effect with lr_decay_style constant``. A value that is the default anyway, as
        in a run_config.json, is passed over.
    """
    for idle in _TABLE:
        if idle.applies(settings):
            for path in idle.paths:
                if path in given and given[path].value != all_options()[path].default:
                    yield f"{given[path].origin} has no effect {idle.why}"
    yield from _recomputed_layers_beyond_stages(given, settings)
    in_cpu = "training.checkpoint_in_cpu"
    if on_cpu and in_cpu in given and given[in_cpu].value:
        yield f"{given[in_cpu].origin} has no effect on CPU: everything is in its memory"


def _recomputed_layers_beyond_stages(given: Mapping[str, Given], settings: Settings) -> Iterator[str]:
    """More recomputed layers than any stage has; more than the whole model has are refused."""
    path = "training.recompute_num_layers"
    most = _most_layers_of_a_stage(settings)
    if path not in given or most is None or not most < given[path].value or "full" not in settings.recompute_sources:
        return
    what = {
        "block": "all layers of every stage are recomputed",
        "uniform": "every stage is one chunk",
    }[settings.value("training.recompute_method")]
    yield f"{given[path].origin} {given[path].value} is more than any stage has ({counted(most, 'layer')}): {what}"


def _most_layers_of_a_stage(settings: Settings) -> int | None:
    """Layers of the fullest stage; None where that isn't known before the start, or there is one stage."""
    layers: int | None = settings.value("model.num_layers")
    stages: int = settings.value("parallel.pipeline_model_parallel_size")
    method: str = settings.value("parallel.pp_partition_method")
    if stages == 1 or not layers:
        return None
    if method.lower() == "type:transformer":
        return math.ceil(layers / stages)
    try:
        counts = counted_layers(method)
    except ValueError:
        return None  # reported by a rule
    return max(counts) if counts is not None else None
