"""The rules that involve more than one option. Each is a function from settings to problems; all of them always run."""

from __future__ import annotations

from megatron_ds.config.rules.bert import (
    PROGRAMS,
    bert_has_options_of_its_kind,
    bert_options_have_bert,
    binary_head_has_two_token_types,
    classes_have_a_head,
    program_problems,
)
from megatron_ds.config.rules.checkpoint import (
    fresh_start_has_a_folder,
    kept_multiples_are_exceptions,
    loading_has_a_folder,
    one_schedule_counts,
    saves_have_a_folder,
)
from megatron_ds.config.rules.common import Rule
from megatron_ds.config.rules.model import (
    deepnorm_options_have_deepnorm,
    fp32_residual_is_before_norms,
    groups_divide_heads,
    heads_divide_hidden_size,
    one_rope_scaling,
    padded_vocabulary_holds_all_ids,
    padded_vocabulary_is_shared_evenly,
    prefix_has_the_sample_to_itself,
    rope_scaling_factors_are_ordered,
    rope_scaling_options_have_scaling,
    rotary_options_have_rope,
    rotated_width_is_even,
    sequence_fits_positions,
    too_little_padding,
)
from megatron_ds.config.rules.optimizer import (
    min_lr_is_below_lr,
    one_warmup,
    warmup_ends_before_decay,
)
from megatron_ds.config.rules.parallel import (
    no_layer_matches,
    partition_method_is_known,
    processes_hold_whole_models,
    stages_have_layers,
    tp_divides_ffn,
    tp_divides_heads,
    tp_divides_sequence,
    tp_fits_groups,
    zero_fits_pipeline,
    zero_stage_0_is_fp32,
)
from megatron_ds.config.rules.recompute import (
    one_granularity,
    recomputed_layers_exist,
    saved_inputs_are_cut_evenly,
    saved_inputs_are_those_of_layers,
    saved_inputs_are_whole,
)
from megatron_ds.config.rules.shapes import padding_step
from megatron_ds.config.rules.task import (
    instructions_have_no_prefix,
    packed_examples_are_apart,
    pairs_fit_sequence,
    task_is_named,
)
from megatron_ds.config.rules.training import (
    attention_backend_fits,
    attention_backend_on_cpu,
    fp16_on_cpu,
    fp16_scales_are_powers,
    one_precision,
)
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem

__all__ = [
    "PROGRAMS",
    "RULES",
    "attention_backend_on_cpu",
    "broken_rules",
    "fp16_on_cpu",
    "no_layer_matches",
    "padding_step",
    "program_problems",
    "task_is_named",
    "too_little_padding",
    "warmup_ends_before_decay",
]

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
    bert_options_have_bert,
    bert_has_options_of_its_kind,
    binary_head_has_two_token_types,
    classes_have_a_head,
    one_warmup,
    warmup_ends_before_decay,
    min_lr_is_below_lr,
    saves_have_a_folder,
    kept_multiples_are_exceptions,
    loading_has_a_folder,
    one_schedule_counts,
    fresh_start_has_a_folder,
    attention_backend_fits,
    pairs_fit_sequence,
    packed_examples_are_apart,
    instructions_have_no_prefix,
)


def broken_rules(settings: Settings) -> list[Problem]:
    """Every problem that every rule finds; rules skip what is not known.

    Args:
        settings: the options.

    Returns:
        The problems, in the order of the rules.
    """
    return [problem for rule in RULES for problem in rule(settings)]
