"""transformers' GPT-2, Llama and BERT under DeepSpeed, with SDPA; the loss is transformers' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.peers.deepspeed_step import DeepSpeedStep
from megatron_ds.config import ResolvedRun
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch

if TYPE_CHECKING:
    from benchmarks.peers.workload import Workload

_IGNORED = -100  # transformers' mark of a label that doesn't count


class HuggingFaceStep(DeepSpeedStep):
    """The step that a user of transformers writes. Its loss is the mean of micro-batch means."""

    def build(self, workload: Workload, resolved: ResolvedRun) -> nn.Module:
        """The model in fp32, with transformers' random weights, as one compiled whole where that is asked for."""
        torch.manual_seed(resolved.run.training.seed)
        with self.device:
            model = transformers_model(resolved.run.model)
        model.train()
        if workload.compiled:
            model.compile()
        return model

    def share(self, batch: Batch | BertBatch, label_count: float) -> Tensor:  # noqa: ARG002 - transformers takes means
        """A micro-batch's share of the mean over micro-batches."""
        if isinstance(batch, BertBatch):
            output = self.engine(
                input_ids=batch.tokens,
                attention_mask=batch.padding_mask,
                token_type_ids=batch.token_types,
                labels=batch.labels.masked_fill(batch.loss_mask == 0, _IGNORED),
                next_sentence_label=batch.sop_labels,
            )
        else:
            # Given so, transformers doesn't shift them: a sample's last token is a label only.
            output = self.engine(
                input_ids=batch.tokens, labels=batch.labels, shift_labels=batch.labels.contiguous(), use_cache=False
            )
        loss: Tensor = output.loss
        return loss / (self.workload.samples / self.workload.micro_batch_size)


def unsupported(config: ModelConfig) -> str | None:
    """Why no model of transformers in this file is of this architecture; None when one is."""
    kind = _kind(config)
    if kind == "other":
        return "neither GPT-2, Llama nor BERT of transformers has this architecture"
    return None


def _kind(config: ModelConfig) -> str:
    tied = not config.untie_embeddings_and_output_weights
    if config.model_type == "bert":
        return "bert" if config.residual_connection == "post_ln" else "other"
    choices = (config.position_embedding_type, config.normalization, config.activation, config.disable_bias_linear)
    if choices == ("learned_absolute", "LayerNorm", "gelu_tanh", False) and tied:
        return "gpt2"
    return "llama" if choices == ("rope", "RMSNorm", "swiglu", True) and not tied else "other"


def transformers_model(config: ModelConfig) -> nn.Module:
    """Transformers' model of this architecture, without dropout; its vocabulary is the padded one.

    Raises:
        ValueError: there is none.
    """
    import transformers

    common = {"vocab_size": config.padded_vocab_size(1), "attn_implementation": "sdpa"}
    kind = _kind(config)
    if kind == "gpt2":
        made = transformers.GPT2Config(
            n_positions=config.num_positions,
            n_embd=config.hidden_size,
            n_layer=config.num_layers,
            n_head=config.num_attention_heads,
            n_inner=config.ffn_size,
            layer_norm_epsilon=config.layernorm_epsilon,
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
            **common,
        )
        return transformers.GPT2LMHeadModel(made)
    common |= {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.ffn_size,
        "max_position_embeddings": config.num_positions,
    }
    if kind == "llama":
        made = transformers.LlamaConfig(
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.layernorm_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
            tie_word_embeddings=False,
            **common,
        )
        return transformers.LlamaForCausalLM(made)
    if kind == "bert":
        made = transformers.BertConfig(
            layer_norm_eps=config.layernorm_epsilon,
            hidden_act="gelu_new" if config.activation == "gelu_tanh" else "gelu",
            type_vocab_size=config.token_types,
            **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
            **common,
        )
        return transformers.BertForPreTraining(made)
    raise ValueError(unsupported(config))
