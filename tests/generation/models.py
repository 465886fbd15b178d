"""Tiny models with random weights, as `transformers` has them and as we do, and running ours at a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.checkpoint.weights import model_specs
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.generation.generate import generate
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.options import Completion, Decoding, Request
from megatron_ds.mpu import ModelParallelUnit

VOCAB_SIZE, POSITIONS = 61, 24
HIDDEN, HEADS, LAYERS, FFN = 32, 4, 3, 96
# Three layers don't divide two stages. The vocabulary is a prime: every tensor-parallel size pads it.
SIZES = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "seq_length": POSITIONS,
    "vocab_size": VOCAB_SIZE,
}
Weights = Mapping[str, Tensor]

# One, three and nine tokens.
PROMPTS = ((7,), (3, 50, 12), (5, 9, 1, 44, 60, 2, 33, 18, 21))


@dataclass(frozen=True)
class Reference:
    """A model of `transformers`, and the same one of ours.

    Attributes:
        theirs: the model.
        config: our architecture.
        weights: ours by canonical name, whole.
    """

    theirs: torch.nn.Module
    config: ModelConfig
    weights: Weights

    def greedy(self, prompt: Sequence[int], max_new_tokens: int, eod_id: int | None = None) -> list[int]:
        """What `transformers` goes on with."""
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=eod_id, pad_token_id=0)
        tokens = torch.tensor([list(prompt)])
        output = self.theirs.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
        return output[0, len(prompt) :].tolist()


def _random(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Numbers of which none is zero or one, and such that no bias decides on every token."""
    drawn = torch.randn(tuple(shape), generator=generator)
    if len(shape) > 1:
        return 0.3 * drawn
    return 1 + 0.2 * drawn if name.endswith("weight") else 0.05 * drawn


def _randomized(model: torch.nn.Module) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter.shape, generator))
    model.generation_config.eos_token_id = None
    return model.eval(), {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def gpt2() -> Reference:
    """Learned positions, a tied head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model, theirs = _randomized(
        GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB_SIZE, n_positions=POSITIONS, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS)
        )
    )
    names = {
        "ln_1": "input_layernorm",
        "attn.c_attn": "attention.query_key_value",
        "attn.c_proj": "attention.dense",
        "ln_2": "post_attention_layernorm",
        "mlp.c_fc": "mlp.dense_h_to_4h",
        "mlp.c_proj": "mlp.dense_4h_to_h",
    }
    ours = {
        "word_embeddings.weight": theirs["transformer.wte.weight"],
        "position_embeddings.weight": theirs["transformer.wpe.weight"],
        "final_layernorm.weight": theirs["transformer.ln_f.weight"],
        "final_layernorm.bias": theirs["transformer.ln_f.bias"],
    }
    for layer in range(LAYERS):
        for their_name, our_name in names.items():
            for kind in ("weight", "bias"):
                tensor = theirs[f"transformer.h.{layer}.{their_name}.{kind}"].t()
                if their_name == "attn.c_attn":  # (q|k|v, head, width) to (head, q|k|v, width)
                    tensor = tensor.reshape(3, HEADS, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
                ours[f"layers.{layer}.{our_name}.{kind}"] = tensor
    return Reference(model, ModelConfig(**SIZES), ours)


def llama() -> Reference:
    """Rotary positions, RMSNorm, a gate, two heads of keys, a head of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model, theirs = _randomized(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB_SIZE,
                hidden_size=HIDDEN,
                intermediate_size=FFN,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=2,
                max_position_embeddings=POSITIONS,
                rms_norm_eps=1e-5,
            )
        )
    )
    ours = {
        "word_embeddings.weight": theirs["model.embed_tokens.weight"],
        "final_layernorm.weight": theirs["model.norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(LAYERS):
        part = {name: theirs[f"model.layers.{layer}.{name}.weight"] for name in _LLAMA_PARTS}
        query, key, value = (part[f"self_attn.{name}_proj"].view(2, -1, HIDDEN) for name in "qkv")
        ours |= {
            f"layers.{layer}.input_layernorm.weight": part["input_layernorm"],
            f"layers.{layer}.post_attention_layernorm.weight": part["post_attention_layernorm"],
            f"layers.{layer}.attention.query_key_value.weight": torch.cat([query, key, value], 1).flatten(0, 1),
            f"layers.{layer}.attention.dense.weight": part["self_attn.o_proj"],
            f"layers.{layer}.mlp.dense_h_to_4h.weight": torch.cat([part["mlp.gate_proj"], part["mlp.up_proj"]]),
            f"layers.{layer}.mlp.dense_4h_to_h.weight": part["mlp.down_proj"],
        }
    config = ModelConfig(
        **SIZES,
        ffn_hidden_size=FFN,
        num_query_groups=2,
        position_embedding_type="rope",
        normalization="RMSNorm",
        activation="swiglu",
        disable_bias_linear=True,
        untie_embeddings_and_output_weights=True,
    )
    return Reference(model, config, ours)


_LLAMA_PARTS = (
    *("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    *(f"self_attn.{name}_proj" for name in "qkvo"),
)


def random_weights(config: ModelConfig) -> Weights:
    """Weights of a model, none of them zero or one."""
    generator = torch.Generator().manual_seed(5)
    return {name: _random(name, spec.full_shape, generator) for name, spec in model_specs(config).items()}


def model_at(
    tp: int, pp: int, config: ModelConfig, weights: Weights, dtype: torch.dtype = torch.float32
) -> InferenceModel:
    """This rank's part of a model."""
    device = torch.device("cpu")
    mpu = ModelParallelUnit.create(tp, pp, device) if dist.is_initialized() else ModelParallelUnit.offline()
    assert (mpu.tp_size, mpu.pp_size) == (tp, pp)
    model = InferenceModel(config, mpu, dtype)
    model.load(lambda name, spec: spec.shard(weights[name], mpu.tp_rank, tp))
    return model


def texts(
    model: InferenceModel, prompts: Sequence[Sequence[int]], decoding: Decoding, *, together: bool
) -> list[Completion]:
    """What prompts come to, all of them in one batch or each alone."""
    requests = [Request(tuple(tokens), number) for number, tokens in enumerate(prompts)]
    batches = [requests] if together else [[request] for request in requests]
    return [completion for batch in batches for completion in generate(model, batch, decoding)]


def greedy(max_new_tokens: int = 10, eod_id: int | None = None) -> Decoding:
    """The likeliest tokens."""
    return Decoding(max_new_tokens, eod_id, VOCAB_SIZE)
