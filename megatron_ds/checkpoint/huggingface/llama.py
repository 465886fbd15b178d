"""Llama and its relatives: rotary embeddings, RMSNorm, a gated MLP, shared heads of keys and values.

They differ in biases, in norms of queries and keys, and in sliding windows.
"""

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Entry, Key, biases, gate_activation, tied
from megatron_ds.checkpoint.huggingface.layouts import GATE_AND_VALUE, HEAD_NORM, QKV_APART
from megatron_ds.checkpoint.huggingface.rope import Rope, WindowByLayer

_LAYER = "model.layers.{}."
_ALWAYS = {"position_embedding_type": "rope", "normalization": "RMSNorm"}
_BUFFERS = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq")

_RULES = (
    Rule("word_embeddings", ("model.embed_tokens",)),
    Rule("layers.{}.input_layernorm", (_LAYER + "input_layernorm",)),
    Rule("layers.{}.attention.query_key_value", tuple(f"{_LAYER}self_attn.{part}_proj" for part in "qkv"), QKV_APART),
    Rule("layers.{}.attention.q_layernorm", (_LAYER + "self_attn.q_norm",), HEAD_NORM),
    Rule("layers.{}.attention.k_layernorm", (_LAYER + "self_attn.k_norm",), HEAD_NORM),
    Rule("layers.{}.attention.dense", (_LAYER + "self_attn.o_proj",)),
    Rule("layers.{}.post_attention_layernorm", (_LAYER + "post_attention_layernorm",)),
    Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "mlp.gate_proj", _LAYER + "mlp.up_proj"), GATE_AND_VALUE),
    Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "mlp.down_proj",)),
    Rule("final_layernorm", ("model.norm",)),
)


def _entries(*, vocab: int, ffn: int, heads_of_keys: int | None, positions: int) -> tuple[Entry, ...]:
    """What all of them say; the arguments are defaults of transformers."""
    return (
        Key("vocab_size", "vocab_size", vocab),
        Key("num_hidden_layers", "num_layers", 32),
        Key("hidden_size", "hidden_size", 4096),
        Key("num_attention_heads", "num_attention_heads", 32),
        Key("num_key_value_heads", "num_query_groups", heads_of_keys),
        Key("intermediate_size", "ffn_hidden_size", ffn),
        Key("max_position_embeddings", "seq_length", positions),
        gate_activation("hidden_act", "silu"),
        Rope(),
        Key("rms_norm_eps", "layernorm_epsilon", 1e-6),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("initializer_range", "init_method_std", 0.02),
        tied(False),
    )


LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    prefix="model.",
    entries=(
        *_entries(vocab=32000, ffn=11008, heads_of_keys=None, positions=2048),
        Key("head_dim", "kv_channels"),
        biases("attention_bias", False),
        biases("mlp_bias", False),
    ),
    always=_ALWAYS,
    buffers=_BUFFERS,
    rules=_RULES,
)

MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    prefix="model.",
    entries=(
        *_entries(vocab=32000, ffn=14336, heads_of_keys=8, positions=4096 * 32),
        Key("head_dim", "kv_channels"),
        Key("sliding_window", "window_size", 4096),
    ),
    always={**_ALWAYS, "disable_bias_linear": True},
    buffers=_BUFFERS,
    rules=_RULES,
)

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    prefix="model.",
    entries=(
        *_entries(vocab=151936, ffn=22016, heads_of_keys=32, positions=32768),
        Key("head_dim", "kv_channels"),
        WindowByLayer(),
    ),
    always={**_ALWAYS, "disable_bias_linear": True, "add_qkv_bias": True},
    buffers=_BUFFERS,
    rules=_RULES,
)

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    prefix="model.",
    entries=(
        *_entries(vocab=151936, ffn=22016, heads_of_keys=32, positions=32768),
        Key("head_dim", "kv_channels", 128),
        WindowByLayer(),
    ),
    always={**_ALWAYS, "disable_bias_linear": True, "qk_layernorm": True},
    fixed={"attention_bias": False},
    buffers=_BUFFERS,
    rules=_RULES,
)
