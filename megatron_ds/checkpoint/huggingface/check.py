"""Comparing a model of ours with one of theirs: the same tokens, the largest difference of what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.architectures import choose_architecture
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.models import SequentialModel, model_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec

LARGEST_DIFFERENCE = 1e-4
_NUM_TOKENS = 64
_BATCH = 2


@dataclass(frozen=True)
class Comparison:
    """What two models make of the same random tokens, in fp32.

    Attributes:
        largest_difference: of any logit; of a model without head, of any hidden state.
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
    inputs: tuple[Tensor, ...] = (tokens,)
    is_token = torch.ones_like(tokens)
    if weights.model.model_type == "bert":
        types = torch.randint(max(1, weights.model.token_types), tokens.shape, generator=generator)
        # Their outputs of padding count nowhere, and are not ours.
        is_token[-1, length // 2 :] = 0
        inputs = (tokens, types, is_token)
    theirs = _their_outputs(choose_architecture(weights.model), folder, inputs, dtype)
    ours = _our_outputs(weights, inputs, dtype)
    pairs = [(_flat(our, is_token), _flat(their, is_token)) for our, their in zip(ours, theirs, strict=True)]
    return Comparison(
        max(float((our - their).abs().max()) for our, their in pairs),
        max(float(their.abs().max()) for _, their in pairs),
        int(is_token.sum()),
    )


def _flat(output: Tensor, is_token: Tensor) -> Tensor:
    """``[B, S, ...]`` without padding; ``[B, ...]`` as it is."""
    return output[is_token.bool()] if output.dim() > 2 else output


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
def _our_outputs(weights: ModelWeights, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    """Of tokens ``[B, S, V]``, and of samples ``[B, C]``."""
    model = SequentialModel(model_layers(weights.model, ModelParallelUnit.offline())).eval()
    for name, parameter in model.named_parameters():
        # Cut as this model is: padding of the vocabulary is another one where more ranks have saved.
        parameter.copy_(shard_spec(parameter).shard(weights.read(name), 0, 1).to(dtype))
    outputs = model(inputs if len(inputs) > 1 else inputs[0])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    vocab_size = weights.model.vocab_size if weights.model.output_head == "lm" else None
    return [
        output.transpose(0, 1)[..., :vocab_size].float() if output.dim() > 2 else output.float() for output in outputs
    ]


@torch.no_grad()
def _their_outputs(
    architecture: Architecture, folder: Path, inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> list[Tensor]:
    """The same of theirs."""
    model = _their_model(architecture, folder)
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))
    if architecture.family == "gpt":
        return [model(inputs[0]).logits]
    tokens, types, is_token = inputs
    if architecture.name == "BertForMultipleChoice":
        # All of them as the choices of one sample.
        tokens, types, is_token = tokens[None], types[None], is_token[None]
    outputs = model(tokens, attention_mask=is_token, token_type_ids=types).to_tuple()
    return [output.view(-1, 1) if tokens.dim() > 2 else output for output in outputs if output is not None]


def _their_model(architecture: Architecture, folder: Path) -> Any:
    import transformers

    options: dict[str, Any] = {}
    name = "AutoModelForCausalLM" if architecture.family == "gpt" else architecture.name
    if architecture.name == "BertModel":
        options["add_pooling_layer"] = architecture.always["bert_binary_head"]
    try:
        model, loading = getattr(transformers, name).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # Whatever its checks of config.json and its many classes raise.
        reason = " ".join(str(error).split())
        raise CheckpointError(
            Problem(f"transformers can't load {folder}: {reason}", advice="correct its files, or leave --check out")
        ) from error
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names and kind != "error_msgs"}
    if wrong:
        raise CheckpointError(Problem(f"transformers loads {folder} with {wrong}"))
    return model.eval()
