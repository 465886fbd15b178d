"""The table of docs/models.md says what the presets hold."""

from __future__ import annotations

import math
import re
from functools import partial

from megatron_ds.config import resolve
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.files import presets_folder
from megatron_ds.models import model_layers, whole_model_specs

PAGE = presets_folder().parent / "docs" / "models.md"
_BLOCKS = {"pre_ln": "pre-LN", "post_ln": "post-LN", "deepnorm": "DeepNorm", "parallel": "parallel"}
_ACTIVATIONS = {"gelu_tanh": "GELU (tanh)", "gelu": "GELU", "relu": "ReLU", "swiglu": "SwiGLU", "geglu": "GeGLU"}


def _preset(name: str) -> ModelConfig:
    flags = ["--model-preset", name, "--micro-batch-size", "1", "--train-iters", "1", "--lr", "1"]
    model = resolve(flags, {"WORLD_SIZE": "1", "DS_ACCELERATOR": "cuda"}, "test").run.model
    size = 30_522 if model.model_type == "bert" else 50_257
    return model if model.vocab_size is not None else model.model_copy(update={"vocab_size": size})


def _positions(model: ModelConfig) -> str:
    if model.position_embedding_type == "rope":
        share = f", {model.rotary_percent:.0%}" if model.rotary_percent < 1 else ""
        scaled = ", Llama 3's scaling" if model.use_rope_scaling else ""
        window = f", window {model.window_size}" if model.window_size else ""
        return f"RoPE {model.rotary_base:g}{share}{scaled}{window}".replace("e+06", "·10⁶")
    return {"alibi": "ALiBi", "learned_absolute": f"{model.num_positions} learned"}[model.position_embedding_type]


def _norm(model: ModelConfig) -> str:
    extras = [word for word, on in (("embeddings", model.embed_layernorm), ("Q, K", model.qk_layernorm)) if on]
    return model.normalization + (f" (+ {', '.join(extras)})" if extras else "")


def row(name: str) -> str:
    """One line of the table."""
    model = _preset(name)
    specs = whole_model_specs(partial(model_layers, model))
    cells = (
        f"`{name}`",
        model.num_layers,
        model.hidden_size,
        f"{model.num_attention_heads} x {model.head_size}",
        model.num_kv_heads,
        model.ffn_size,
        _positions(model),
        _norm(model),
        _ACTIVATIONS[model.activation],
        _BLOCKS[model.residual_connection],
        "no" if model.disable_bias_linear else "yes",
        "own" if model.untie_embeddings_and_output_weights else "tied",
        f"{model.hidden_dropout:g}, {model.attention_dropout:g}",
        model.vocab_size,
        f"{sum(math.prod(spec.full_shape) for spec in specs.values()):,}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def test_table_of_presets_is_current() -> None:
    names = sorted(path.stem for path in (presets_folder() / "models").glob("*.json"))
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `\w+` \| \d+ \|", line)]
    assert rows == [row(name) for name in names]
