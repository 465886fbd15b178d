"""BLOOM: ALiBi, and a norm after the word embeddings."""

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Key, tied
from megatron_ds.checkpoint.huggingface.layouts import QKV_BY_HEAD

_LAYER = "transformer.h.{}."

BLOOM = Architecture(
    name="BloomForCausalLM",
    model_type="bloom",
    prefix="transformer.",
    entries=(
        Key("vocab_size", "vocab_size", 250880),
        Key("n_layer", "num_layers", 2, other_names=("num_hidden_layers",)),
        Key("hidden_size", "hidden_size", 64, other_names=("n_embed",)),
        Key("n_head", "num_attention_heads", 8, other_names=("num_attention_heads",)),
        # Not read by transformers: ALiBi has no last position.
        Key("seq_length", "seq_length", 2048),
        Key("layer_norm_epsilon", "layernorm_epsilon", 1e-5),
        Key(
            "apply_residual_connection_post_layernorm",
            "residual_connection",
            False,
            {"pre_ln": False, "post_ln": True},
        ),
        Key("hidden_dropout", "hidden_dropout", 0.0),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("initializer_range", "init_method_std", 0.02),
        tied(True),
    ),
    always={"position_embedding_type": "alibi", "embed_layernorm": True},
    derived=("kv_channels", "num_query_groups", "ffn_hidden_size"),
    # Ways to compute the same, and traces of the training program.
    no_matter=(
        *("slow_but_exact", "masked_softmax_fusion", "attention_softmax_in_fp32", "bias_dropout_fusion", "n_inner"),
        *("offset_alibi", "skip_bias_add", "skip_bias_add_qkv"),
    ),
    rules=(
        Rule("word_embeddings", ("transformer.word_embeddings",)),
        Rule("embed_layernorm", ("transformer.word_embeddings_layernorm",)),
        Rule("layers.{}.input_layernorm", (_LAYER + "input_layernorm",)),
        Rule("layers.{}.attention.query_key_value", (_LAYER + "self_attention.query_key_value",), QKV_BY_HEAD),
        Rule("layers.{}.attention.dense", (_LAYER + "self_attention.dense",)),
        Rule("layers.{}.post_attention_layernorm", (_LAYER + "post_attention_layernorm",)),
        Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "mlp.dense_h_to_4h",)),
        Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "mlp.dense_4h_to_h",)),
        Rule("final_layernorm", ("transformer.ln_f",)),
    ),
)
