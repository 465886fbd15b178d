"""GPT-2: learned positions; linear layers hold their matrices as [in, out]."""

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Key, activation, tied
from megatron_ds.checkpoint.huggingface.layouts import QKV_IN_THIRDS, TRANSPOSED

_LAYER = "transformer.h.{}."

GPT2 = Architecture(
    name="GPT2LMHeadModel",
    model_type="gpt2",
    prefix="transformer.",
    usual_activation="gelu_tanh",
    entries=(
        Key("vocab_size", "vocab_size", 50257),
        Key("n_layer", "num_layers", 12, other_names=("num_hidden_layers",)),
        Key("n_embd", "hidden_size", 768, other_names=("hidden_size",)),
        Key("n_head", "num_attention_heads", 12, other_names=("num_attention_heads",)),
        Key("n_positions", "max_position_embeddings", 1024, other_names=("max_position_embeddings",)),
        Key("n_inner", "ffn_hidden_size"),
        activation("activation_function", "gelu_new"),
        Key("layer_norm_epsilon", "layernorm_epsilon", 1e-5),
        Key("resid_pdrop", "hidden_dropout", 0.1),
        Key("embd_pdrop", "hidden_dropout", 0.1),
        Key("attn_pdrop", "attention_dropout", 0.1),
        Key("initializer_range", "init_method_std", 0.02),
        tied(True),
    ),
    derived=("kv_channels", "num_query_groups"),
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    # `reorder_and_upcast_attn` is about the dtype of scores, `summary_…` about other heads.
    no_matter=(
        *("n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
    rules=(
        Rule("word_embeddings", ("transformer.wte",)),
        Rule("position_embeddings", ("transformer.wpe",)),
        Rule("layers.{}.input_layernorm", (_LAYER + "ln_1",)),
        Rule("layers.{}.attention.query_key_value", (_LAYER + "attn.c_attn",), QKV_IN_THIRDS),
        Rule("layers.{}.attention.dense", (_LAYER + "attn.c_proj",), TRANSPOSED),
        Rule("layers.{}.post_attention_layernorm", (_LAYER + "ln_2",)),
        Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "mlp.c_fc",), TRANSPOSED),
        Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "mlp.c_proj",), TRANSPOSED),
        Rule("final_layernorm", ("transformer.ln_f",)),
    ),
)
