"""Every option of a run. Flags, JSON keys, ``--help`` and docs/config.md are generated from these classes."""

from __future__ import annotations

import math
from typing import Literal

from megatron_ds.config.option import OptionBlock, option

# Upper bounds far above any run, so that a slip of the keyboard is refused with its number and not by the memory.
_MOST_STEPS = 10**9
_WIDEST = 10**7
MOST_RANKS = 10**6
_LARGEST_SCALE = 2.0**63

# Activations whose MLP has a gate beside the value.
GATED_ACTIVATIONS = ("geglu", "swiglu", "reglu", "liglu")

# Switches of `DataConfig` that have to know where documents end.
DOCUMENT_OPTIONS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


class ModelConfig(OptionBlock):
    """Architecture of the model. Says nothing about how it is cut or trained."""

    num_layers: int = option(..., "Number of transformer layers.", ge=1, le=10**5)
    hidden_size: int = option(..., "Width of the residual stream.", ge=1, le=_WIDEST)
    num_attention_heads: int = option(..., "Number of attention heads.", ge=1, le=_WIDEST)
    seq_length: int = option(..., "Tokens in one training sample.", ge=1, le=_WIDEST)
    ffn_hidden_size: int | None = option(
        None,
        "Width inside the MLP. Not given: 4 x hidden size; with a gated activation 8/3 x hidden size, rounded down to "
        "a multiple of 64.",
        ge=1,
        le=_WIDEST,
    )
    kv_channels: int | None = option(
        None, "Width of an attention head; hidden size / heads when not given.", ge=1, le=_WIDEST
    )
    num_query_groups: int | None = option(
        None,
        "Heads of keys and values, each shared by a group of attention heads (GQA; 1 is MQA). Not given: one for each "
        "attention head.",
        aliases=("--num-key-value-heads",),
        ge=1,
        le=_WIDEST,
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
        None, "Number of learned positions; the sequence length when not given.", ge=1, le=_WIDEST
    )
    rotary_base: float = option(
        10000.0, "rope: base of the wavelengths (theta).", aliases=("--rope-theta", "--rotary-emb-base"), gt=1, le=1e12
    )
    rotary_percent: float = option(
        1.0, "rope: share of each head's width that is rotated.", aliases=("--rotary-pct",), gt=0, le=1
    )
    rotary_interleaved: bool = option(
        False, "rope: rotates neighbouring numbers (GPT-J) instead of one from each half of the width (NeoX, Llama)."
    )
    rotary_seq_len_interpolation_factor: float | None = option(
        None, "rope: positions are divided by this (linear scaling).", gt=0, le=10**6
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
        8192, "Llama 3's scaling: sequence length of the training before it.", ge=1, le=_WIDEST
    )
    window_size: int | None = option(
        None,
        "Sliding window: how many tokens a token attends to, itself included. Megatron's `--window-size W,0` is W + 1.",
        aliases=("--sliding-window",),
        ge=1,
        le=_WIDEST,
    )
    prefix_lm: bool = option(
        False,
        "Prefix-LM: the first tokens of each sample, a number drawn from the seed and the sample's number, see each "
        "other in both directions; what is predicted inside of them does not count in the loss.",
    )
    normalization: Literal["LayerNorm", "RMSNorm"] = option(
        "LayerNorm",
        "Kind of the norms; RMSNorm has no bias and takes no mean off.",
        older_values={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"},
    )
    layernorm_epsilon: float = option(1e-5, "Epsilon of the norms.", aliases=("--norm-epsilon",), gt=0, le=1)
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
    """How much of a head's width is rotated."""
    return int(head_size * percent)


class ParallelConfig(OptionBlock):
    """How the model and the batch are spread over processes."""

    tensor_model_parallel_size: int = option(
        1, "Processes that share each layer (TP).", aliases=("--model-parallel-size",), ge=1, le=MOST_RANKS
    )
    pipeline_model_parallel_size: int = option(
        1, "Pipeline stages (PP).", aliases=("--pipe-parallel-size",), ge=1, le=MOST_RANKS
    )
    sequence_parallel: bool = option(
        False,
        "Cuts activations between tensor-parallel layers along the sequence, over the TP ranks: the same numbers in "
        "less memory.",
    )
    zero_stage: Literal[0, 1, 2, 3] | None = option(
        None,
        "DeepSpeed ZeRO stage. Not given: 0 for fp32 without a pipeline, else 1. Stages 2 and 3 need a pipeline size "
        "of 1.",
    )
    pp_partition_method: str = option(
        "type:transformer",
        "How layers are dealt to pipeline stages: `type:REGEX` (even counts of layers whose class name matches), "
        "`parameters` (even sums), `uniform` (even counts of all layers, embeddings and head too), or the number of "
        "transformer layers of each stage, `layers:3,5,5,3`.",
    )
    distributed_timeout_minutes: float = option(
        10.0, "How long a collective may wait before the run ends.", ge=0.1, le=10**5
    )


class DataConfig(OptionBlock):
    """What is read, and how text became tokens."""

    data_path: list[str] = option(
        [], "One prefix of .bin/.idx files, or weight/prefix pairs: `0.3 code_text_document 0.7 web_text_document`."
    )
    split: str = option("969,30,1", "Shares of the documents of --data-path for training, validation and test.")
    train_data_path: list[str] = option(
        [], "Training data by itself, in place of --data-path and --split: all documents of a prefix, or a blend."
    )
    valid_data_path: list[str] = option([], "Validation data by itself, like --train-data-path.")
    test_data_path: list[str] = option([], "Test data by itself, like --train-data-path.")
    train_weighted_split_paths: list[str] = option(
        [],
        "Training data as `NAME: WEIGHT START:END PREFIX, …`: a blend of ranges of documents, as shares from 0 to 1.",
        long_text=True,
    )
    valid_weighted_split_paths: list[str] = option(
        [],
        "Validation sets, each `NAME: WEIGHT START:END PREFIX, …`; each is evaluated and logged under its name.",
        long_text=True,
    )
    test_weighted_split_paths: list[str] = option(
        [], "Test sets, like --valid-weighted-split-paths; evaluated at the end of training.", long_text=True
    )
    data_cache_path: str | None = option(None, "Folder for the sample indices; beside the data files when not given.")
    dataloader_type: Literal["single", "cyclic"] = option(
        "single",
        "Order of training samples. `single`: one pass over the samples of the run, epoch after epoch. `cyclic`: all "
        "samples of the run shuffled once more, epochs and sets of a blend among each other.",
    )
    num_workers: int = option(0, "Background processes of the data loader.", ge=0, le=1024)
    tokenizer_type: (
        Literal[
            "HFTokenizer",
            "GPT2BPETokenizer",
            "SentencePieceTokenizer",
            "BertWordPieceLowerCase",
            "BertWordPieceCase",
            "ByteTokenizer",
            "NullTokenizer",
        ]
        | None
    ) = option(
        None,
        "Kind of tokenizer. Other names of the same: `PretrainedFromHF` and `HuggingFaceTokenizer`; "
        "`GPTSentencePieceTokenizer` and `Llama2Tokenizer`.",
        older_values={
            "PretrainedFromHF": "HFTokenizer",
            "HuggingFaceTokenizer": "HFTokenizer",
            "GPTSentencePieceTokenizer": "SentencePieceTokenizer",
            "Llama2Tokenizer": "SentencePieceTokenizer",
        },
    )
    tokenizer_name_or_path: str | None = option(
        None, "HFTokenizer: a folder, a tokenizer.json, or a hub name.", aliases=("--tokenizer-name",)
    )
    tokenizer_model: str | None = option(None, "SentencePieceTokenizer: the .model file.")
    vocab_file: str | None = option(None, "GPT2BPETokenizer: vocab.json. BertWordPieceLowerCase, …Case: vocab.txt.")
    merge_file: str | None = option(None, "GPT2BPETokenizer: merges.txt.", aliases=("--merges-file",))
    allow_other_tokenizer: bool = option(
        False, "Trains on data that was preprocessed with another tokenizer: for one that gives the same ids."
    )
    eod_id: int | None = option(
        None,
        "Id of the token that ends a document (EOD); taken from the tokenizer when not given.",
        ge=0,
        le=2**31 - 1,
    )
    reset_position_ids: bool = option(False, "Counts positions from 0 again after each EOD.")
    reset_attention_mask: bool = option(False, "Lets a token attend to its own document only; the EOD belongs to it.")
    eod_mask_loss: bool = option(
        False, "Leaves out of the loss what is predicted at an EOD: the first token of the next document."
    )

    @property
    def document_options(self) -> tuple[str, ...]:
        """Names of the switches that are on and have to know where documents end."""
        return tuple(name for name in DOCUMENT_OPTIONS if getattr(self, name))

    vocab_extra_ids: int = option(
        0,
        "Sentinels `<extra_id_0>` … for T5 that the tokenizer has, each with an id of its own; those that are not in "
        "its vocabulary come after it.",
        ge=0,
        le=10**5,
    )


class TrainingConfig(OptionBlock):
    """Batches, number of steps, precision, evaluation."""

    micro_batch_size: int = option(..., "Samples in one forward pass of one process.", ge=1, le=10**6)
    global_batch_size: int | None = option(
        None,
        "Samples in one optimizer step, over all processes. Not given: micro-batch size x data-parallel size.",
        ge=1,
        le=10**9,
    )
    train_iters: int = option(..., "Optimizer steps in the whole run.", ge=0, le=_MOST_STEPS)
    eval_interval: int = option(1000, "Steps between evaluations.", ge=1, le=_MOST_STEPS)
    eval_iters: int = option(100, "Global batches in one evaluation; 0 turns evaluation off.", ge=0, le=_MOST_STEPS)
    seed: int = option(1234, "Seed of the initial weights, the order of samples, and dropout.", ge=0, le=2**32 - 1)
    bf16: bool = option(False, "Trains in bfloat16, with fp32 masters and fp32 gradient accumulation.")
    fp16: bool = option(False, "Trains in float16 with loss scaling (CUDA only).")
    loss_scale: float = option(0.0, "fp16: a fixed loss scale; 0 means a dynamic one.", ge=0, le=_LARGEST_SCALE)
    initial_loss_scale: float = option(
        65536.0, "fp16: first value of the dynamic loss scale, a power of two.", ge=1, le=_LARGEST_SCALE
    )
    min_loss_scale: float = option(1.0, "fp16: the least dynamic loss scale.", gt=0, le=_LARGEST_SCALE)
    loss_scale_window: int = option(
        1000, "fp16: steps without overflow before the scale doubles.", ge=1, le=_MOST_STEPS
    )
    hysteresis: int = option(2, "fp16: overflows that are tolerated before the scale halves.", ge=1, le=_MOST_STEPS)
    max_skipped_steps: int = option(
        50, "fp16: steps in a row that overflow and are skipped, at which the run ends.", ge=1, le=_MOST_STEPS
    )
    check_tp_replicas_interval: int | None = option(
        None,
        "Steps between checks that tensor-parallel ranks have equal copies of the parameters that are not cut; a "
        "difference ends the run. Not given: none.",
        ge=1,
        le=_MOST_STEPS,
    )
    attention_backend: Literal["auto", "cudnn", "flash", "efficient", "math", "flex"] = option(
        "auto",
        "Kernel of attention. `auto`: on CUDA cuDNN where it fits, else flash, memory-efficient or plain SDPA; flex "
        "attention for ALiBi, windows and separate documents, which never writes out a mask. On a CPU always SDPA.",
    )
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        "What the backward pass computes again instead of keeping it. `full`: whole transformer layers; `selective`: "
        "the core of attention, between queries, keys, values and what comes out. Not given: nothing.",
    )
    checkpoint_activations: bool = option(
        False,
        "Short for --recompute-granularity full.",
        aliases=("--deepspeed-activation-checkpointing",),
    )
    recompute_activations: bool = option(False, "Short for --recompute-granularity selective.")
    recompute_method: Literal["uniform", "block"] = option(
        "uniform",
        "full recomputation: of chunks of --recompute-num-layers layers, of which only the first one's input is kept "
        "(`uniform`), or of each of the first --recompute-num-layers layers of every stage and no other (`block`).",
        aliases=("--activations-checkpoint-method",),
    )
    recompute_num_layers: int | None = option(
        None,
        "Layers in a chunk (uniform; 1 when not given), or recomputed layers of each stage (block).",
        aliases=("--checkpoint-num-layers", "--activations-checkpoint-num-layers"),
        ge=1,
        le=10**5,
    )
    distribute_saved_activations: bool = option(
        False,
        "full recomputation: each tensor-parallel rank keeps its share of the inputs that recomputation starts from.",
        aliases=("--partition-activations",),
    )
    checkpoint_in_cpu: bool = option(
        False,
        "full recomputation: the inputs that it starts from wait in pinned host memory.",
        aliases=("--cpu-checkpointing",),
    )

    @property
    def recompute(self) -> Literal["full", "selective"] | None:
        """What the backward pass computes again, whichever of the options says it."""
        if self.recompute_granularity is not None:
            return self.recompute_granularity
        return "full" if self.checkpoint_activations else "selective" if self.recompute_activations else None

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """The dtype that the layers compute in."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"


class OptimizerConfig(OptionBlock):
    """AdamW, its learning-rate schedule and gradient clipping."""

    lr: float = option(..., "Peak learning rate.", ge=0, le=1000)
    min_lr: float = option(0.0, "Learning rate at the end of the decay.", ge=0, le=1000)
    lr_decay_style: Literal["constant", "linear", "cosine"] = option("linear", "Shape of the decay after warm-up.")
    lr_decay_iters: int | None = option(
        None, "Step at which the decay ends; train_iters when not given.", ge=1, le=_MOST_STEPS
    )
    lr_warmup_iters: int = option(0, "Steps of linear warm-up.", aliases=("--warmup-iters",), ge=0, le=_MOST_STEPS)
    lr_warmup_fraction: float | None = option(
        None, "Warm-up as a share of the decay steps, instead of --lr-warmup-iters.", ge=0, le=1
    )
    weight_decay: float = option(0.01, "Decoupled weight decay of matrices; biases and norms have none.", ge=0, le=1000)
    adam_beta1: float = option(0.9, "Adam's first beta.", ge=0, lt=1)
    adam_beta2: float = option(0.999, "Adam's second beta.", ge=0, lt=1)
    adam_eps: float = option(1e-8, "Adam's epsilon.", gt=0, le=1)
    clip_grad: float = option(1.0, "Largest global gradient norm; 0 turns clipping off.", ge=0, le=10**9)


class CheckpointConfig(OptionBlock):
    """Where the run is saved and what it starts from."""

    save: str | None = option(None, "Folder for checkpoints, metrics.jsonl and the resolved configs.")
    load: str | None = option(
        None, "Folder of checkpoints to go on from, saved at any layout, or one checkpoint's own folder inside of it."
    )
    load_step: int | None = option(
        None, "Goes on from the checkpoint of this step, not from the one that `latest` names.", ge=0, le=_MOST_STEPS
    )
    finetune: bool = option(
        False,
        "Takes the weights of --load only, and begins a new run with them: step 0, new optimizer state, the order of "
        "samples from its beginning.",
    )
    no_load_optim: bool = option(
        False, "Goes on from --load with new optimizer state (moments, loss scale); weights and progress are loaded."
    )
    no_load_rng: bool = option(
        False, "Goes on from --load with the dropout masks of a new run instead of those of the run's next steps."
    )
    override_lr_scheduler: bool = option(
        False,
        "Goes on from --load with this run's learning-rate schedule where it is not the checkpoint's.",
        aliases=("--override-opt-param-scheduler",),
    )
    use_checkpoint_lr_scheduler: bool = option(
        False,
        "Goes on from --load with the checkpoint's learning-rate schedule, whatever this run's options say.",
        aliases=("--use-checkpoint-opt-param-scheduler",),
    )
    save_interval: int | None = option(
        None, "Steps between checkpoints. The last step is always saved when --save is given.", ge=1, le=_MOST_STEPS
    )
    allow_data_change: bool = option(
        False,
        "Goes on from --load with other training data, another blend or another order, instead of stopping with an "
        "error: samples may then repeat or be left out.",
    )
    allow_fresh_start: bool = option(
        False, "Starts from step 0 when --load finds no checkpoint, instead of stopping with an error."
    )


class LoggingConfig(OptionBlock):
    """What is reported and where."""

    log_interval: int = option(10, "Steps between log lines and lines of metrics.jsonl.", ge=1, le=_MOST_STEPS)
    tensorboard_dir: str | None = option(None, "Also writes TensorBoard events here ([tensorboard] extra).")
    wandb_project: str | None = option(None, "Also logs to this Weights & Biases project ([wandb] extra).")
    wandb_exp_name: str | None = option(None, "Name of the Weights & Biases run.")


def default_zero_stage(precision: str, pp_size: int) -> int:
    """The ZeRO stage in force when none is given: 0 for fp32 without a pipeline, else 1."""
    return 0 if precision == "fp32" and pp_size == 1 else 1


class RunConfig(OptionBlock):
    """One whole run, resolved and checked. Built once, then passed down in parts."""

    model: ModelConfig
    parallel: ParallelConfig
    data: DataConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    world_size: int = option(1, "Number of processes, as the launcher says.", ge=1, le=MOST_RANKS)

    @property
    def dp_size(self) -> int:
        """Data-parallel size: processes / (TP x PP)."""
        parallel = self.parallel
        return self.world_size // (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step."""
        given = self.training.global_batch_size
        return given if given is not None else self.training.micro_batch_size * self.dp_size

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that one data-parallel replica runs in one step (gradient accumulation steps)."""
        return self.global_batch_size // (self.training.micro_batch_size * self.dp_size)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage in force."""
        if self.parallel.zero_stage is not None:
            return self.parallel.zero_stage
        return default_zero_stage(self.training.precision, self.parallel.pipeline_model_parallel_size)
