"""The arguments that say there what a model of ours is."""

from __future__ import annotations

from argparse import Namespace

import torch

from megatron_ds.checkpoint.megatron.arguments import SAME, VOCAB_SIZE
from megatron_ds.checkpoint.megatron.expressible import LayoutName
from megatron_ds.config.blocks import ModelConfig


def arguments_of(
    model: ModelConfig, *, layout: LayoutName, tp_size: int, pp_size: int, transformer_impl: str, dtype: torch.dtype
) -> Namespace:
    """The arguments that Megatron-LM would have saved for `model`: what it compares and what it builds a model from.

    Args:
        model: ours, expressible in the layout.
        layout: the layout.
        tp_size: tensor-parallel size of the files.
        pp_size: pipeline stages of the files.
        transformer_impl: ``local`` or ``transformer_engine``.
        dtype: of the weights.
    """
    same = {name: getattr(model, ours) for ours, names in SAME.items() for name in names}
    groups = model.num_kv_heads
    has_groups = groups != model.num_attention_heads
    # The approximation is what the fused kernel computes; without biases there is no fused kernel, and in the head of a
    # BERT there never is.
    approximates = model.activation == "gelu_tanh"
    is_bert = model.model_type == "bert"
    has_kernel = not model.disable_bias_linear and not is_bert
    return Namespace(
        **{
            **same,
            "ffn_hidden_size": model.ffn_size,
            "kv_channels": model.head_size,
            "max_position_embeddings": model.num_positions,
            "encoder_num_layers": model.num_layers,
            "encoder_seq_length": model.seq_length,
            "group_query_attention": has_groups,
            "num_query_groups": groups if has_groups else 1,
            "num_key_value_heads": groups,
            "position_embedding_type": model.position_embedding_type,
            "add_position_embedding": model.has_learned_positions,
            "use_rotary_position_embeddings": model.position_embedding_type == "rope",
            "window_size": None if model.window_size is None else (model.window_size - 1, 0),
            "normalization": model.normalization,
            "apply_layernorm_1p": False,
            "apply_residual_connection_post_layernorm": model.residual_connection == "post_ln",
            "add_bias_linear": not model.disable_bias_linear,
            "swiglu": model.activation == "swiglu",
            "squared_relu": model.activation == "squared_relu",
            "openai_gelu": approximates and not has_kernel,
            "onnx_safe": None,
            "bias_gelu_fusion": approximates and has_kernel,
            **({"bert_binary_head": model.bert_binary_head} if is_bert else {}),
            "num_experts": None,
            "padded_vocab_size": model.padded_vocab_size(tp_size),
            VOCAB_SIZE: model.vocab_size,
            "vocab_file": None,
            "tokenizer_type": None,
            "tensor_model_parallel_size": tp_size,
            "model_parallel_size": tp_size,
            "pipeline_model_parallel_size": pp_size,
            "virtual_pipeline_model_parallel_size": None,
            "data_parallel_random_init": False,
            "params_dtype": dtype,
            "bf16": dtype == torch.bfloat16,
            "fp16": dtype == torch.float16,
            "transformer_impl": transformer_impl,
            "use_legacy_models": layout == "classic",
            "ckpt_format": "torch",
            "consumed_train_samples": 0,
            "consumed_valid_samples": 0,
        }
    )
