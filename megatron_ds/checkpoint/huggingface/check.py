"""Comparing a model of ours with one of theirs: the same tokens, the largest difference of logits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.models import SequentialModel, gpt_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec

LARGEST_DIFFERENCE = 1e-4
_NUM_TOKENS = 64
_BATCH = 2


@dataclass(frozen=True)
class Comparison:
    """What two models make of the same random tokens, in fp32.

    Attributes:
        largest_difference: of any logit.
        largest_logit: of theirs, by its absolute value.
        num_tokens: how many tokens were looked at.
    """

    largest_difference: float
    largest_logit: float
    num_tokens: int


def compare_logits(weights: ModelWeights, folder: Path, dtype: torch.dtype, seed: int = 1234) -> Comparison:
    """Compares the logits of `weights` with those of the model that transformers loads from `folder`.

    Both compute in fp32 on the CPU, from weights that are rounded to `dtype`: what is compared is the conversion, so
    that the same bound holds for all dtypes.

    Args:
        weights: our model; the whole of it is held in memory here, and theirs too.
        folder: theirs.
        dtype: of the weights that were written.
        seed: of the tokens.

    Raises:
        CheckpointError: transformers can't load `folder`, or finds that weights are missing or too many.
    """
    length = min(_NUM_TOKENS, weights.model.seq_length)
    assert weights.model.vocab_size is not None
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(weights.model.vocab_size, (_BATCH, length), generator=generator)
    theirs = _their_logits(folder, tokens, dtype)
    ours = _our_logits(weights, tokens, dtype)
    return Comparison(float((ours - theirs).abs().max()), float(theirs.abs().max()), tokens.numel())


def check_difference(comparison: Comparison) -> None:
    """Refuses logits that are not the same.

    Raises:
        CheckpointError: they differ by more than the rounding of sums in fp32.
    """
    # Written so that NaN fails.
    if not comparison.largest_difference <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            Problem(
                f"the two models differ: largest |Δlogit| {comparison.largest_difference:.3g} is above "
                f"{LARGEST_DIFFERENCE:g} (largest |logit| {comparison.largest_logit:.3g})",
                advice="don't use what was written, and report this with the model's config.json",
            )
        )


@torch.no_grad()
def _our_logits(weights: ModelWeights, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, S, V]``."""
    model = SequentialModel(gpt_layers(weights.model, ModelParallelUnit.offline())).eval()
    for name, parameter in model.named_parameters():
        # Cut as this model is: padding of the vocabulary is another one where more ranks have saved.
        parameter.copy_(shard_spec(parameter).shard(weights.read(name), 0, 1).to(dtype))
    logits = model(tokens)
    assert isinstance(logits, Tensor)
    return logits.transpose(0, 1)[..., : weights.model.vocab_size].float()


@torch.no_grad()
def _their_logits(folder: Path, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, S, V]``."""
    from transformers import AutoModelForCausalLM

    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # Whatever its checks of config.json and its many classes raise.
        reason = " ".join(str(error).split())
        raise CheckpointError(
            Problem(f"transformers can't load {folder}: {reason}", advice="correct its files, or leave --check out")
        ) from error
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names and kind != "error_msgs"}
    if wrong:
        raise CheckpointError(Problem(f"transformers loads {folder} with {wrong}"))
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))
    logits: Tensor = model.eval()(tokens).logits
    return logits
