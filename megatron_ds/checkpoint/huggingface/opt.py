"""OPT: learned positions whose table begins with two rows that no token of a text reads."""

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Key, activation, biases, tied
from megatron_ds.checkpoint.huggingface.layouts import QKV_APART, after_unused_rows

_LAYER = "model.decoder.layers.{}."
_UNUSED_ROWS = 2

OPT = Architecture(
    name="OPTForCausalLM",
    model_type="opt",
    prefix="model.",
    usual_activation="relu",
    entries=(
        Key("vocab_size", "vocab_size", 50272),
        Key("num_hidden_layers", "num_layers", 12),
        Key("hidden_size", "hidden_size", 768),
        Key("word_embed_proj_dim", "hidden_size"),
        Key("num_attention_heads", "num_attention_heads", 12),
        Key("ffn_dim", "ffn_hidden_size", 3072),
        Key("max_position_embeddings", "max_position_embeddings", 2048),
        activation("activation_function", "relu"),
        biases("enable_bias", True),
        Key("dropout", "hidden_dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("init_std", "init_method_std", 0.02),
        tied(True),
    ),
    derived=("kv_channels", "num_query_groups"),
    fixed={"do_layer_norm_before": True, "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    no_matter=("layerdrop", "activation_dropout"),
    rules=(
        Rule("word_embeddings", ("model.decoder.embed_tokens",)),
        Rule(
            "position_embeddings",
            ("model.decoder.embed_positions",),
            after_unused_rows(_UNUSED_ROWS),
            unused_rows=_UNUSED_ROWS,
        ),
        Rule("layers.{}.input_layernorm", (_LAYER + "self_attn_layer_norm",)),
        Rule(
            "layers.{}.attention.query_key_value",
            tuple(f"{_LAYER}self_attn.{part}_proj" for part in "qkv"),
            QKV_APART,
        ),
        Rule("layers.{}.attention.dense", (_LAYER + "self_attn.out_proj",)),
        Rule("layers.{}.post_attention_layernorm", (_LAYER + "final_layer_norm",)),
        Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "fc1",)),
        Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "fc2",)),
        Rule("final_layernorm", ("model.decoder.final_layer_norm",)),
    ),
)
