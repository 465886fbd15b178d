"""Options of the model's architecture."""

from __future__ import annotations

import math
from typing import Literal

from megatron_ds.config.blocks.bounds import SMALLEST, WIDEST
from megatron_ds.config.option import OptionBlock, option

# Activations whose MLP has a gate beside the value.
GATED_ACTIVATIONS = ("geglu", "swiglu", "reglu", "liglu")


class ModelConfig(OptionBlock):
    """Architecture of the model. Says nothing about how it is cut or trained."""

    model_type: Literal["gpt", "bert"] = option(
        "gpt",
        "Family of the model. pretrain_gpt.py and pretrain_bert.py train one each, so it need not be given.",
    )
    output_head: Literal["lm", "classification", "multiple_choice", "none"] = option(
        "lm",
        "What the model ends with. `lm`: scores of tokens, which pretraining trains. bert also has `classification`: "
        "scores of a sample's classes; `multiple_choice`: one score for each choice of a sample; `none`: hidden "
        "states. finetune.py takes the one that its task needs.",
    )
    num_classes: int | None = option(
        None,
        "bert with output_head classification: classes of a sample; 1 stands for a number that is to be told. "
        "finetune.py takes it from its task.",
        ge=1,
        le=WIDEST,
    )
    num_layers: int = option(..., "Number of transformer layers.", ge=1, le=10**5)
    hidden_size: int = option(..., "Width of the residual stream.", ge=1, le=WIDEST)
    num_attention_heads: int = option(..., "Number of attention heads.", ge=1, le=WIDEST)
    seq_length: int = option(..., "Tokens in one training sample.", ge=1, le=WIDEST)
    ffn_hidden_size: int | None = option(
        None,
        "Width inside the MLP. Not given: 4 x hidden size; with a gated activation 8/3 x hidden size, rounded down to "
        "a multiple of 64.",
        ge=1,
        le=WIDEST,
    )
    kv_channels: int | None = option(
        None, "Width of an attention head; hidden size / heads when not given.", ge=1, le=WIDEST
    )
    num_query_groups: int | None = option(
        None,
        "Heads of keys and values, each shared by a group of attention heads (GQA; 1 is MQA). Not given: one for each "
        "attention head.",
        aliases=("--num-key-value-heads",),
        ge=1,
        le=WIDEST,
    )
    position_embedding_type: Literal["learned_absolute", "rope", "alibi", "none"] = option(
        "learned_absolute",
        "How the model knows positions: a learned vector for each, rotary embeddings, ALiBi's slopes, or not at all. "
        "`learned`, `absolute` and `rotary` are accepted as older names.",
        aliases=("--pos-emb",),
        older_values={"learned": "learned_absolute", "absolute": "learned_absolute", "rotary": "rope"},
        switches={"--use-rotary-position-embeddings": "rope"},
    )
    max_position_embeddings: int | None = option(
        None, "Number of learned positions; the sequence length when not given.", ge=1, le=WIDEST
    )
    rotary_base: float = option(
        10000.0, "rope: base of the wavelengths (theta).", aliases=("--rope-theta", "--rotary-emb-base"), gt=1, le=1e12
    )
    rotary_percent: float = option(
        1.0,
        "rope: share of each head's width that is rotated. Width x share is rounded down, as Megatron and transformers "
        "do in floating point (200 x 0.29 is 57.99…, so 57), and has to be even.",
        aliases=("--rotary-pct",),
        gt=0,
        le=1,
    )
    rotary_interleaved: bool = option(
        False, "rope: rotates neighbouring numbers (GPT-J) instead of one from each half of the width (NeoX, Llama)."
    )
    rotary_seq_len_interpolation_factor: float | None = option(
        None, "rope: positions are divided by this (linear scaling).", ge=1, le=10**6
    )
    use_rope_scaling: bool = option(
        False, "rope: Llama 3's scaling, which stretches long wavelengths and leaves short ones."
    )
    rope_scaling_factor: float = option(8.0, "Llama 3's scaling: how far long wavelengths are stretched.", ge=1, le=1e6)
    rope_low_freq_factor: float = option(
        1.0, "Llama 3's scaling: wavelengths over original positions / this are stretched in full.", gt=0, le=1e6
    )
    rope_high_freq_factor: float = option(
        4.0, "Llama 3's scaling: wavelengths under original positions / this are left alone.", gt=0, le=1e6
    )
    rope_original_max_positions: int = option(
        8192, "Llama 3's scaling: sequence length of the training before it.", ge=1, le=WIDEST
    )
    window_size: int | None = option(
        None,
        "Sliding window: how many tokens a token attends to, itself included. Megatron's `--window-size W,0` is W + 1.",
        aliases=("--sliding-window",),
        ge=1,
        le=WIDEST,
    )
    prefix_lm: bool = option(
        False,
        "Prefix-LM: the first tokens of each sample, a number drawn from the seed and the sample's number, see each "
        "other in both directions; what is predicted inside of them does not count in the loss.",
    )
    bert_binary_head: bool = option(
        True,
        "bert: trains a head on top of the first token to tell whether the two parts of a sample are in the order of "
        "the text. Without it there is the loss of the masked tokens alone.",
        switches={"--bert-no-binary-head": False},
    )
    num_tokentypes: int | None = option(
        None,
        "bert: kinds of tokens with an embedding each. Not given: 2 with the binary head, else 0.",
        ge=0,
        le=WIDEST,
    )
    normalization: Literal["LayerNorm", "RMSNorm"] = option(
        "LayerNorm",
        "Kind of the norms; RMSNorm has no bias and takes no mean off.",
        older_values={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"},
    )
    layernorm_epsilon: float = option(1e-5, "Epsilon of the norms.", aliases=("--norm-epsilon",), ge=SMALLEST, le=1)
    embed_layernorm: bool = option(False, "Adds a norm right after the word embeddings (BLOOM).")
    qk_layernorm: bool = option(
        False, "Adds norms of each head's queries and keys, over the head's width, before rotary embeddings (Qwen3)."
    )
    activation: Literal["gelu_tanh", "gelu", "relu", "squared_relu", "silu", "geglu", "swiglu", "reglu", "liglu"] = (
        option(
            "gelu_tanh",
            "Activation inside the MLP. `gelu` is exact, `gelu_tanh` its approximation in GPT-2 and BLOOM. The last "
            "four are gated: activation(gate) x value, with GELU, SiLU, ReLU or nothing.",
            aliases=("--glu-activation",),
            switches={"--swiglu": "swiglu", "--squared-relu": "squared_relu"},
        )
    )
    residual_connection: Literal["pre_ln", "post_ln", "deepnorm", "parallel"] = option(
        "pre_ln",
        "How norms and the residual stream go together: norms inside the branches; norms on the stream (BERT); the "
        "same with DeepNorm's factor; or attention and MLP side by side (GPT-J, NeoX).",
        switches={
            "--apply-residual-connection-post-layernorm": "post_ln",
            "--deepnorm": "deepnorm",
            "--parallel-residual": "parallel",
            "--use-parallel-residual": "parallel",
            "--gpt-j-residual": "parallel",
        },
    )
    deepnorm_alpha: float | None = option(
        None, "deepnorm: factor of the residual stream; (2 x layers)^(1/4) when not given.", gt=0, le=1e6
    )
    deepnorm_beta: float | None = option(
        None,
        "deepnorm: factor of the initial weights of MLP, values and attention output; (8 x layers)^(-1/4) when not "
        "given.",
        gt=0,
        le=1e6,
    )
    fp32_residual_connection: bool = option(False, "Keeps the residual stream in fp32 under bf16 and fp16.")
    disable_bias_linear: bool = option(False, "Linear layers without biases.")
    add_qkv_bias: bool = option(False, "Queries, keys and values have biases where --disable-bias-linear takes them.")
    vocab_size: int | None = option(
        None, "Number of token ids in use; taken from the tokenizer when not given.", ge=1, le=2**31 - 1
    )
    make_vocab_size_divisible_by: int = option(
        128,
        "The vocabulary is padded to a multiple of this x the tensor-parallel size. Padding never enters the loss.",
        ge=1,
        le=10**6,
    )
    pad_vocab_size_to: int | None = option(
        None,
        "The vocabulary is padded to this size, whatever the tensor-parallel size, instead of a multiple of "
        "make_vocab_size_divisible_by x that size.",
        ge=1,
        le=2**31 - 1,
    )
    untie_embeddings_and_output_weights: bool = option(
        False, "Gives the output head its own weights instead of the word embeddings'."
    )
    hidden_dropout: float = option(0.1, "Dropout after the embeddings, the attention and the MLP.", ge=0, lt=1)
    attention_dropout: float = option(0.1, "Dropout of the attention probabilities.", ge=0, lt=1)
    init_method_std: float = option(0.02, "Standard deviation of the initial weights.", gt=0, le=100)
    init_method: Literal["normal", "xavier_normal"] = option(
        "normal",
        "Initial matrices of the layers: all with --init-method-std, or each with sqrt(2 / (inputs + outputs)). "
        "Embeddings and an own head keep --init-method-std.",
    )
    use_scaled_init_method: bool = option(
        True, "Divides the initial weights that write to the residual stream by sqrt(2 x layers); not with deepnorm."
    )

    @property
    def ffn_size(self) -> int:
        """Width inside the MLP."""
        return self.ffn_hidden_size or default_ffn_size(self.hidden_size, gated=self.is_gated)

    @property
    def is_gated(self) -> bool:
        """Whether the MLP's activation is the product of a gate and a value."""
        return self.activation in GATED_ACTIVATIONS

    @property
    def num_positions(self) -> int:
        """Number of learned positions."""
        return self.max_position_embeddings if self.max_position_embeddings is not None else self.seq_length

    @property
    def is_bidirectional(self) -> bool:
        """Whether tokens attend to those after them too."""
        return self.model_type == "bert"

    @property
    def token_types(self) -> int:
        """Kinds of tokens that have an embedding."""
        if self.num_tokentypes is not None:
            return self.num_tokentypes
        return 2 if self.model_type == "bert" and self.bert_binary_head else 0

    @property
    def scores_per_sample(self) -> int:
        """What a classification or multiple-choice head gives for each sequence."""
        return (self.num_classes or 1) if self.output_head == "classification" else 1

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def rotary_size(self) -> int:
        """How much of a head's width is rotated."""
        return rotary_width(self.head_size, self.rotary_percent)

    @property
    def has_learned_positions(self) -> bool:
        """Whether each position has a learned vector."""
        return self.position_embedding_type == "learned_absolute"

    @property
    def residual_alpha(self) -> float:
        """Factor of the residual stream, 1 without DeepNorm (Wang et al. 2022, "DeepNet", table 2, decoder-only)."""
        if self.residual_connection != "deepnorm":
            return 1.0
        return self.deepnorm_alpha or (2 * self.num_layers) ** 0.25

    @property
    def branch_init_gain(self) -> float:
        """Factor of initial weights of MLP, values and attention output, 1 without DeepNorm (same table)."""
        if self.residual_connection != "deepnorm":
            return 1.0
        return self.deepnorm_beta or (8 * self.num_layers) ** -0.25

    def matrix_std(self, inputs: int, outputs: int) -> float:
        """Standard deviation of a layer's initial matrix, before the factors of `output_std` and DeepNorm.

        Args:
            inputs: numbers that go into the matrix.
            outputs: numbers that come out of it.
        """
        return self.init_method_std if self.init_method == "normal" else math.sqrt(2 / (inputs + outputs))

    def output_std(self, inputs: int) -> float:
        """Standard deviation of the initial weights that write to the residual stream.

        Divided by ``sqrt(2 L)``, so that the stream's variance does not grow with depth (Radford et al. 2019, section
        2.3), or multiplied by DeepNorm's beta.

        Args:
            inputs: numbers that go into the matrix.
        """
        std = self.matrix_std(inputs, self.hidden_size)
        if self.residual_connection == "deepnorm":
            return std * self.branch_init_gain
        return std / math.sqrt(2 * self.num_layers) if self.use_scaled_init_method else std

    def padded_vocab_size(self, tp_size: int) -> int:
        """``pad_vocab_size_to``; else the next multiple of ``make_vocab_size_divisible_by`` x `tp_size`."""
        assert self.vocab_size is not None, "the vocabulary size is resolved before a model is built"
        if self.pad_vocab_size_to is not None:
            return self.pad_vocab_size_to
        multiple = self.make_vocab_size_divisible_by * tp_size
        return (self.vocab_size + multiple - 1) // multiple * multiple


def default_ffn_size(hidden_size: int, *, gated: bool) -> int:
    """Width of the MLP when none is given.

    A gated MLP has three matrices instead of two; two thirds of the width leave the number of weights as it is.
    """
    return max(64, 8 * hidden_size // 3 // 64 * 64) if gated else 4 * hidden_size


def rotary_width(head_size: int, percent: float) -> int:
    """How much of a head's width is rotated.

    In floating point, as in Megatron's `RotaryEmbedding` and transformers' `modeling_rope_utils`: a model that is
    exchanged with them rotates as much here as there.
    """
    return int(head_size * percent)
