"""`export_megatron`: our weights as files that Megatron-LM and its DeepSpeed forks load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from megatron_ds.checkpoint.megatron.classic_files import ClassicWriter
from megatron_ds.checkpoint.megatron.cut import Cut
from megatron_ds.checkpoint.megatron.expressible import LayoutName, check_expressible
from megatron_ds.checkpoint.megatron.found import DEEPSPEED_TRACKER, MEGATRON_TRACKER
from megatron_ds.checkpoint.megatron.names import CLASSIC, CLASSIC_NORMS, Spelling, core_spelling
from megatron_ds.checkpoint.megatron.pipeline_files import NUMBERINGS, PipelineWriter
from megatron_ds.checkpoint.megatron.row_order import RowOrder
from megatron_ds.checkpoint.megatron.written_arguments import arguments_of
from megatron_ds.checkpoint.new_folder import check_output, new_folder
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.utils.logging import logger

VERSIONS = (0.0, 1.0, 2.0, 3.0)


def export_megatron(
    weights: ModelWeights,
    output: Path,
    *,
    tp_size: int = 1,
    pp_size: int = 1,
    layout: LayoutName = "core",
    checkpoint_version: float = 3.0,
    transformer_impl: str = "transformer_engine",
    iteration: int = 0,
) -> None:
    """Writes files that Megatron-LM or one of its DeepSpeed forks loads, and the tracker files.

    One file is put together at a time. Its size is the model's over TP x PP in the layouts ``classic`` and ``core``
    (``iter_*/mp_rank_*/model_optim_rng.pt``), and a layer's over TP in ``bloom`` and ``microsoft``
    (``global_step*/layer_*``).

    Args:
        weights: of the model.
        output: a folder that does not exist, or is empty.
        tp_size: tensor-parallel size of the files.
        pp_size: pipeline stages of the files.
        layout: ``core`` for Megatron core's models, ``classic`` for those before it, ``bloom`` and ``microsoft`` for
            the pipelines of the two DeepSpeed forks.
        checkpoint_version: 3, or for old code 0, 1 or 2 (classic only), which order queries, keys and values otherwise.
        transformer_impl: core's layers, ``transformer_engine`` or ``local``; they name norms differently.
        iteration: that the files state.

    Raises:
        ConfigError: the model has options that the layout can't express (all in one report), or sizes don't divide.
        CheckpointError: `output` is taken, or the system can't write. Nothing is left.
    """
    model = weights.model
    check_expressible(model, layout, tp_size, pp_size)
    _check_version(model, layout, checkpoint_version, pp_size)
    check_output(output)
    cut = Cut(weights, RowOrder(checkpoint_version, value_first=layout == "bloom"), tp_size)
    dtype = weights.read("word_embeddings.weight").dtype
    arguments = arguments_of(
        model, layout=layout, tp_size=tp_size, pp_size=pp_size, transformer_impl=transformer_impl, dtype=dtype
    )
    # An interrupted export is none.
    with new_folder(output) as partial:
        if layout in NUMBERINGS:
            # BLOOM's arguments hold an enum of its own, which only its own code can pickle.
            stated = None if layout == "bloom" else arguments
            folder = PipelineWriter(cut, NUMBERINGS[layout], pp_size, stated, iteration).write(partial)
            (partial / DEEPSPEED_TRACKER).write_text(folder.name)
        else:
            spelling = _spelling(model, layout, transformer_impl)
            folder = ClassicWriter(cut, spelling, pp_size, arguments, iteration).write(partial)
        (partial / MEGATRON_TRACKER).write_text(str(iteration))
    logger.info(
        "wrote %s; weights only: load them with --no-load-optim --no-load-rng, or --finetune%s",
        output / folder.name,
        "; and with --openai-gelu, for the GELU of our model" if arguments.openai_gelu else "",
    )


def _check_version(model: ModelConfig, layout: LayoutName, version: float, pp_size: int) -> None:
    problems = []
    if version not in VERSIONS:
        problems.append(Problem(f"there is no checkpoint version {version:g}", advice="use 3"))
    if layout != "classic" and version != 3:
        problems.append(Problem(f"files of layout {layout} have checkpoint version 3, not {version:g}", advice="use 3"))
    if version < 2 and model.num_kv_heads != model.num_attention_heads:
        problems.append(
            Problem(
                f"num_query_groups={model.num_query_groups} can't be written as version {version:g}", advice="use 3"
            )
        )
    if version < 2 and pp_size > 1:
        problems.append(
            Problem(f"version {version:g} has no pipelines; the export has {pp_size} stages", advice="use 2 or 3")
        )
    if problems:
        raise ConfigError(problems)


def _spelling(model: ModelConfig, layout: LayoutName, transformer_impl: str) -> Spelling:
    if layout == "core":
        stack = "encoder" if model.model_type == "bert" else "decoder"
        return core_spelling(transformer_engine=transformer_impl == "transformer_engine", stack=stack)
    spelling = CLASSIC_NORMS if model.normalization == "RMSNorm" else CLASSIC
    if model.output_head == "multiple_choice":
        return replace(spelling, heads={**spelling.heads, "classification_head": "multichoice_head"})
    return spelling
