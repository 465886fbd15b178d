"""GPT-NeoX and Pythia: rotary embeddings, of a part of each head or the whole, and LayerNorm."""

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Key, activation, tied
from megatron_ds.checkpoint.huggingface.layouts import QKV_BY_HEAD
from megatron_ds.checkpoint.huggingface.rope import Rope

_LAYER = "gpt_neox.layers.{}."

GPT_NEOX = Architecture(
    name="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    prefix="gpt_neox.",
    entries=(
        Key("vocab_size", "vocab_size", 50432),
        Key("num_hidden_layers", "num_layers", 44),
        Key("hidden_size", "hidden_size", 6144),
        Key("num_attention_heads", "num_attention_heads", 64),
        Key("intermediate_size", "ffn_hidden_size", 24576),
        Key("max_position_embeddings", "seq_length", 2048),
        activation("hidden_act", "gelu"),
        Key("use_parallel_residual", "residual_connection", True, {"pre_ln": False, "parallel": True}),
        Rope("rotary_emb_base", "rotary_pct", 0.25),
        Key("layer_norm_eps", "layernorm_epsilon", 1e-5),
        Key("hidden_dropout", "hidden_dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("initializer_range", "init_method_std", 0.02),
        tied(False),
    ),
    always={"position_embedding_type": "rope"},
    derived=("kv_channels", "num_query_groups"),
    fixed={"attention_bias": True},
    buffers=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    head="embed_out",
    older_heads=("lm_head",),
    rules=(
        Rule("word_embeddings", ("gpt_neox.embed_in",)),
        Rule("layers.{}.input_layernorm", (_LAYER + "input_layernorm",)),
        Rule("layers.{}.attention.query_key_value", (_LAYER + "attention.query_key_value",), QKV_BY_HEAD),
        Rule("layers.{}.attention.dense", (_LAYER + "attention.dense",)),
        Rule("layers.{}.post_attention_layernorm", (_LAYER + "post_attention_layernorm",)),
        Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "mlp.dense_h_to_4h",)),
        Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "mlp.dense_4h_to_h",)),
        Rule("final_layernorm", ("gpt_neox.final_layer_norm",)),
    ),
)
