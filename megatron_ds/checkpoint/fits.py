"""Whether a checkpoint and a run fit together: files, model, order of samples, and where the run is saved."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint.find import FRESH_START, FoundCheckpoint, find_checkpoint, holds_nothing
from megatron_ds.config.blocks import ModelConfig, RunConfig
from megatron_ds.data.order import TrainingOrder
from megatron_ds.errors import CheckpointError, Problem, Source
from megatron_ds.utils.text import value_text

# Model options that neither change the shape of a weight nor what it means.
_FREE_ON_RESUME = {
    "hidden_dropout",
    "attention_dropout",
    "seq_length",
    "init_method",
    "init_method_std",
    "use_scaled_init_method",
    "deepnorm_beta",
    "fp32_residual_connection",
    "make_vocab_size_divisible_by",
    "pad_vocab_size_to",
}


def checkpoint_problems(run: RunConfig, origins: Mapping[str, str]) -> tuple[FoundCheckpoint | None, list[Problem]]:
    """What ``--load`` and ``--save`` would run into.

    Args:
        run: the run.
        origins: where its options came from.

    Returns:
        The checkpoint to go on from, if any, and the problems.
    """
    found: FoundCheckpoint | None = None
    problems: list[Problem] = []
    load, save = run.checkpoint.load, run.checkpoint.save
    if load is not None and not (run.checkpoint.allow_fresh_start and holds_nothing(Path(load))):
        try:
            found = find_checkpoint(Path(load), run.checkpoint.load_step, otherwise=FRESH_START)
            problems += _missing_files(found)
            problems += _mismatches(found, run, origins)
        except CheckpointError as error:
            problems += error.problems
    if save is not None:
        loaded = found.folder if found is not None else Path(load) if load is not None else None
        goes_on_there = loaded is not None and loaded.resolve() == Path(save).resolve()
        problems += _save_problems(Path(save), origins, goes_on_there=goes_on_there)
        if run.checkpoint.finetune and goes_on_there:
            problems.append(
                Problem(
                    f"--finetune begins a new run, and {save} holds the one that its weights are from",
                    (Source("save", save, origins.get("checkpoint.save", "--save")),),
                    "give another folder to --save",
                )
            )
    return found, problems


def training_order_problems(found: FoundCheckpoint, run: RunConfig, now: TrainingOrder) -> list[Problem]:
    """One problem where the run would not go on in the order of samples that the checkpoint was trained in.

    Args:
        found: the checkpoint.
        run: a run whose data is in order.
        now: what the order of its samples depends on.
    """
    if found.manifest.model.get("model_type", "gpt") != run.model.model_type:
        return []  # samples of another kind altogether; the model is the problem
    try:
        before = TrainingOrder.from_json(found.manifest.training_order)
    except (KeyError, TypeError, IndexError):
        return []  # saved by an earlier version
    changes = before.changes(now)
    if not changes or run.checkpoint.allow_data_change:
        return []
    return [
        Problem(
            f"this run does not go on with the samples of the checkpoint {found.folder / found.tag}: after "
            f"{found.manifest.progress.get('consumed_samples')} consumed samples the order would be another one, and "
            "samples would repeat or be left out\n" + "\n".join(f"    {line}" for line in changes),
            advice="give the options of the run that saved, or --allow-data-change to go on all the same",
        )
    ]


def changed_options(found: FoundCheckpoint, run: RunConfig) -> list[str]:
    """What this run does otherwise than the one that saved, as lines like ``optimizer.lr: 0.001 -> 0.005``.

    All of it is allowed, and some of it changes what "going on" means: the order of samples follows from the seed and
    the data, the learning rate from the schedule. Leaves out where to save and what to log.
    """
    before, now = _training_options(found.manifest.options), _training_options(run.model_dump())
    for options, model in ((before, _model_of(found)), (now, run.model)):
        options.update({f"model.{name}": value for name, value in model_options(model).items()} if model else {})
    if now.get("data.eod_id") is None:
        before.pop("data.eod_id", None)  # asked for only where a switch needs it
    return [
        f"{name}: {value_text(before[name])} -> {value_text(value)}"
        for name, value in now.items()
        if before.get(name, value) != value
    ]


def _model_of(found: FoundCheckpoint) -> ModelConfig | None:
    try:
        return ModelConfig(**found.manifest.model)
    except ValueError:
        return None


def _training_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that training depends on, by ``block.name``."""
    blocks = {name: options[name] for name in ("model", "data", "training", "optimizer") if name in options}
    flat = {f"{block}.{name}": value for block, values in blocks.items() for name, value in values.items()}
    if flat.get("optimizer.lr_decay_iters") is None:
        flat["optimizer.lr_decay_iters"] = flat.get("training.train_iters")
    return flat


def _mismatches(found: FoundCheckpoint, run: RunConfig, origins: Mapping[str, str]) -> list[Problem]:
    """A checkpoint fits a run of the same architecture, at any layout."""
    try:
        saved_model = ModelConfig(**found.manifest.model)
    except ValueError as error:
        message = f"the manifest of {found.folder / found.tag} describes no model that this version knows: {error}"
        return [Problem(message, advice="load it with the version that saved it, or name another checkpoint")]
    return model_mismatches(saved_model, f"the checkpoint {found.folder / found.tag}", run, origins)


def model_mismatches(
    saved_model: ModelConfig,
    label: str,
    run: RunConfig,
    origins: Mapping[str, str],
    free: Collection[str] = (),
) -> list[Problem]:
    """One problem where weights of a model can't be those of a run's.

    Args:
        saved_model: whose weights there are.
        label: where they are from.
        run: the run.
        origins: where its options came from.
        free: options that may differ, besides those that may always.
    """
    ours, theirs = model_options(run.model), model_options(saved_model)
    differing = {
        name: (theirs[name], value)
        for name, value in ours.items()
        if name not in _FREE_ON_RESUME and name not in free and theirs[name] != value
    }
    # Not known yet: the tokenizer could not be opened, which is a problem of its own.
    if ours["vocab_size"] is None:
        differing.pop("vocab_size", None)
    if not differing:
        return []
    sources: list[Source] = []
    for name, (saved_value, value) in differing.items():
        sources.append(Source(name, value_text(saved_value), label))
        sources.append(Source(name, value_text(value), origins.get(f"model.{name}", "this run")))
    return [
        Problem(
            "the checkpoint's model is not this run's: " + ", ".join(differing),
            tuple(sources),
            "give the model options that the checkpoint was trained with",
        )
    ]


def _missing_files(found: FoundCheckpoint) -> list[Problem]:
    """The files that the manifest lists have to be there, as long as they were. Their hashes are `verify`'s work."""
    folder = found.folder / found.tag
    wrong = []
    for name, saved in found.manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            wrong.append(f"{name} is missing")
            continue
        if size != saved["bytes"]:
            wrong.append(f"{name} has {size} bytes instead of {saved['bytes']}")
    if not wrong:
        return []
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return [
        Problem(
            f"the checkpoint {folder} is not whole: {', '.join(wrong[:3])}{more}",
            advice="copy its folder again, or name an older one with --load-step",
        )
    ]


def model_options(model: ModelConfig) -> dict[str, Any]:
    """Options of a model, derived ones filled: a width is the same whether it was spelt out or not.

    Options that a checkpoint of an earlier version does not have are at their defaults.
    """
    return {
        **{name: getattr(model, name) for name in ModelConfig.model_fields},
        "ffn_hidden_size": model.ffn_size,
        "kv_channels": model.head_size,
        "num_query_groups": model.num_kv_heads,
        "num_tokentypes": model.token_types,
        # A shorter sequence may well go on with more positions than it needs.
        "max_position_embeddings": model.num_positions if model.has_learned_positions else None,
    }


def _save_problems(save: Path, origins: Mapping[str, str], *, goes_on_there: bool) -> list[Problem]:
    source = Source("save", str(save), origins.get("checkpoint.save", "--save"))
    if save.exists() and not save.is_dir():
        return [Problem(f"{save} is not a folder", (source,))]
    nearest = next(folder for folder in (save, *save.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "is not a folder" if not nearest.is_dir() else "can't be written to"
        return [Problem(f"{save} can't be made: {nearest} {what}", (source,), "give another folder to --save")]
    if not holds_nothing(save) and not goes_on_there:
        return [
            Problem(
                f"{save} already holds another run's checkpoints",
                (source,),
                f"add --load {save} to go on with that run, or give another folder to --save",
            )
        ]
    return []
