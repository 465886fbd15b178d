"""`import_megatron`: a checkpoint of Megatron-LM or of its DeepSpeed forks as `ModelWeights`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from megatron_ds.checkpoint.foreign import refuse_own
from megatron_ds.checkpoint.megatron.arguments import model_of
from megatron_ds.checkpoint.megatron.bert import head_has_other_gelu, options_in
from megatron_ds.checkpoint.megatron.classic import (
    classic_files,
    deepspeed_files,
    open_classic,
    without_core_head_copy,
)
from megatron_ds.checkpoint.megatron.found import (
    DEEPSPEED_TRACKER,
    MEGATRON_TRACKER,
    Place,
    TheirCheckpoint,
    read_section,
)
from megatron_ds.checkpoint.megatron.pipeline_folder import layer_files, open_pipeline_folder
from megatron_ds.checkpoint.megatron.reader import JoiningReader, some
from megatron_ds.checkpoint.megatron.row_order import RowOrder
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ShardSpec
from megatron_ds.utils.logging import logger


def import_megatron(folder: Path, model: ModelConfig | None = None, *, average_copies: bool = False) -> ModelWeights:
    """The weights of a checkpoint, joined from all of their ranks; each is read when it is asked for.

    Files in torch's zip format are mapped, so that reading one parameter takes the memory of that parameter. Older
    files are read whole, those of one stage at a time.

    Args:
        folder: with a tracker file, or the checkpoint's own folder (``iter_*``, ``global_step*``).
        model: the architecture, for files that don't say it (all); compared with what they say.
        average_copies: take the mean where tensor-parallel ranks hold different copies of what they share.

    Returns:
        The weights, in the files' dtypes. Where the files don't say how many token ids are real, padding counts too.

    Raises:
        CheckpointError: there is no checkpoint or one of ours, files are missing, damaged or hold foreign objects, or
            our models can't express theirs.
    """
    checkpoint = _locate(folder)
    refuse_own(checkpoint)
    their = _open(checkpoint)
    seen = options_in(their.places, _shape_on_first_rank)
    model = model_of(their.arguments, model or _left_by_export(their), str(their.origin), seen)
    if head_has_other_gelu(model, their.arguments):
        logger.warning(
            "%s: the head of masked tokens has the exact GELU there, and the MLP's approximation here: scores of "
            "tokens differ a little",
            checkpoint,
        )
    their = without_core_head_copy(their, untied=model.untie_embeddings_and_output_weights)
    specs = model_specs(model)
    order = RowOrder(their.checkpoint_version, value_first=their.value_first)
    _check_names(their, specs)
    # The files of one stage: parameters are asked for in the model's order.
    most_files = max((len(place.files) for place in their.places.values()), default=1)
    reader = JoiningReader(
        their, specs, order, lru_cache(maxsize=2 * most_files)(read_section), average_copies=average_copies
    )
    reader.check_shapes()
    step = "" if their.iteration is None else f", iteration {their.iteration}"
    logger.info(
        "%s: checkpoint version %g, %d tensor-parallel ranks%s; weights only, the optimizer's state is not converted",
        checkpoint,
        their.checkpoint_version,
        most_files,
        step,
    )
    return ModelWeights(model, specs, reader.read)


def _shape_on_first_rank(place: Place) -> tuple[int, ...]:
    return tuple(read_section(place.files[0], place.section)[place.name].shape)


def _locate(folder: Path) -> Path:
    """The checkpoint's own folder."""
    if not folder.is_dir():
        raise CheckpointError(Problem(f"there is no folder {folder}", advice="check the path given to --input"))
    tags = []
    for tracker in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        if (folder / tracker).is_file():
            tag = (folder / tracker).read_text(errors="replace").strip()
            # Microsoft's fork writes both trackers, and its folders are DeepSpeed's.
            tags += [f"iter_{int(tag):07d}", f"global_step{tag}"] if tag.isdigit() else [tag]
    if not tags:
        return folder
    for tag in tags:
        if (folder / tag).is_dir():
            return folder / tag
    raise CheckpointError(
        Problem(
            f"the tracker in {folder} names {' or '.join(dict.fromkeys(tags))}, and there is no such folder",
            advice="give the checkpoint's own folder",
        )
    )


def _open(folder: Path) -> TheirCheckpoint:
    if layer_files(folder):
        return open_pipeline_folder(folder)
    files = classic_files(folder) or deepspeed_files(folder)
    if files:
        return open_classic(folder, files)
    if (folder / ".metadata").is_file():
        raise CheckpointError(
            Problem(
                f"{folder} is a distributed checkpoint of Megatron core (torch_dist), which is not read",
                advice="load it there once with --ckpt-convert-format torch --ckpt-convert-save DIR, and import DIR",
            )
        )
    raise CheckpointError(
        Problem(
            f"{folder} holds no checkpoint of Megatron's: neither mp_rank_00/model_optim_rng.pt nor "
            "layer_01-model_00-model_states.pt nor mp_rank_00_model_states.pt",
            advice="give the folder that has the tracker file, or the iter_* or global_step* folder itself",
        )
    )


def _left_by_export(their: TheirCheckpoint) -> ModelConfig | None:
    """The model that our own export described in a file without arguments."""
    if their.options is None:
        return None
    try:
        return ModelConfig(**their.options)
    except (TypeError, ValueError) as error:
        message = f"{their.origin} describes no model that this version knows: {error}"
        raise CheckpointError(Problem(message, advice="describe the model with --model FILE.json")) from error


def _check_names(their: TheirCheckpoint, specs: Mapping[str, ShardSpec]) -> None:
    """Every parameter of the model is there, and nothing else."""
    problems = []
    unknown = [*their.strange, *(place.name for name, place in their.places.items() if name not in specs)]
    missing = [name for name in specs if name not in their.places]
    if unknown:
        problems.append(
            Problem(
                f"{their.origin} and its like hold weights that the model described doesn't have: {some(unknown)}",
                advice="only GPT and BERT with dense layers are read; or describe the model with --model FILE.json",
            )
        )
    if missing:
        problems.append(
            Problem(
                f"{their.origin} and its like lack weights of the model described: {some(missing)}",
                advice="copy the files of all ranks and layers, or describe the model with --model FILE.json",
            )
        )
    if problems:
        raise CheckpointError(problems)
