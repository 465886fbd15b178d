"""Flags of others about the model's architecture, its initial weights and its kernels."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

_IN_FP32 = "leave it out: attention's kernels sum in fp32, at any precision"
_ONE_MODEL = "leave it out: there is one implementation of the layers, in PyTorch"

MODEL = Topic(
    "Model",
    accepted=Names(
        both="--num-layers --hidden-size --ffn-hidden-size --num-attention-heads --kv-channels "
        "--max-position-embeddings --make-vocab-size-divisible-by --layernorm-epsilon --hidden-dropout "
        "--attention-dropout --init-method-std --apply-residual-connection-post-layernorm --bert-no-binary-head "
        "--fp32-residual-connection",
        bloom="--embed-layernorm --position-embedding-type --glu-activation --pad-vocab-size-to",
        microsoft="--num-key-value-heads --use-rotary-position-embeddings --rotary-position-embeddings-theta "
        "--rotary-percent --normalization --squared-relu --swiglu --untie-embeddings-and-output-weights "
        "--disable-bias-linear",
    ),
    renamed=(
        Renamed("num_layers", Names(others="num_hidden_layers n_layer n_layers")),
        Renamed("hidden_size", Names(others="n_embd d_model")),
        Renamed("num_attention_heads", Names(others="n_head n_heads num_heads")),
        Renamed("max_position_embeddings", Names(bloom="--max-absolute-position-embeddings")),
        Renamed("ffn_hidden_size", Names(others="intermediate_size")),
        Renamed("kv_channels", Names(others="head_dim")),
        Renamed("activation", Names(others="hidden_act")),
        Renamed("layernorm_epsilon", Names(others="rms_norm_eps layer_norm_eps layer_norm_epsilon")),
        Renamed("init_method_std", Names(others="initializer_range")),
        Renamed("rotary_percent", Names(others="partial_rotary_factor")),
        Renamed("pad_vocab_size_to", Names(others="--padded-vocab-size")),
    ),
    refused=(
        Refused(
            "give --num-layers; encoders with a decoder (T5) are not supported", Names(microsoft="--encoder-num-layers")
        ),
        Refused("encoders with a decoder (T5) are not supported", Names(microsoft="--decoder-num-layers")),
        Refused(
            "give --position-embedding-type none; beside --use-rotary-position-embeddings leave it out",
            Names(microsoft="--no-position-embedding"),
        ),
        Refused("leave it out: --activation gelu_tanh, which is the same, is the default", Names(both="--openai-gelu")),
        Refused("give --activation gelu", Names(both="--onnx-safe")),
        Refused(
            "give --init-method xavier_normal, whose weights have the same variance",
            Names(both="--init-method-xavier-uniform"),
        ),
        Refused(
            "not supported: the norms multiply by their weights as they are", Names(microsoft="--apply-layernorm-1p")
        ),
        Refused(
            "leave it out: embeddings are looked up in the dtype of the run, from fp32 masters",
            Names(microsoft="--embedding-weights-in-fp32"),
        ),
        Refused(
            "leave it out: initial weights are drawn on the device, the same at every layout",
            Names(
                both="--use-cpu-initialization --lazy-mpu-init",
                microsoft="--no-initialization --data-parallel-random-init",
            ),
        ),
        Refused(
            "leave --untie-embeddings-and-output-weights out: they are tied unless it is given",
            Names(others="--tie-word-embeddings"),
        ),
        Refused(
            "use_rope_scaling is true for Llama 3's scaling, with rope_scaling_factor, rope_low_freq_factor, "
            "rope_high_freq_factor and rope_original_max_positions; rotary_seq_len_interpolation_factor is the "
            "linear one",
            Names(others="rope_scaling"),
        ),
    ),
    notes={
        "--num-layers": "need not be a multiple of the pipeline size",
        "--ffn-hidden-size": "default with a gated activation: 8/3 x hidden size, rounded down to a multiple of 64, as "
        "with Microsoft's --swiglu; BLOOM's fork stays at 4 x hidden size",
        "--glu-activation": "the default of --ffn-hidden-size is narrower than BLOOM's: give it",
        "--max-position-embeddings": "default: the sequence length. With ALiBi or rotary positions it says nothing",
        "--make-vocab-size-divisible-by": "the same padding, and its scores never enter the loss",
        "--position-embedding-type": "`absolute` and `rotary` are called `learned_absolute` and `rope`; the old "
        "names work",
        "--normalization": "`layernorm` and `rmsnorm` work, as do Megatron-LM's spellings",
        "--init-method-std": "the same distribution, other draws",
    },
)

KERNELS = Topic(
    "Kernels",
    refused=(
        Refused(
            "leave it out, or give --attention-backend flash: by default the fastest kernel that fits is taken",
            Names(
                microsoft="--use-flash-attn --use-flash-attn-v1 --use-flash-attn-v2 --use-flash-attn-triton "
                "--use-flash-attn-builder"
            ),
        ),
        Refused(
            _IN_FP32,
            Names(
                both="--attention-softmax-in-fp32 --no-query-key-layer-scaling",
                others="--no-attention-softmax-in-fp32 --apply-query-key-layer-scaling",
            ),
        ),
        Refused(
            "leave it out: nothing is compiled at the start, and PyTorch chooses its kernels",
            Names(
                both="--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion",
                bloom="--abort-on-unmet-fused-kernel-constraints",
                microsoft="--no-gradient-accumulation-fusion",
                others="--no-bias-swiglu-fusion --no-rope-fusion --bias-dropout-fusion --bias-gelu-fusion "
                "--masked-softmax-fusion --cross-entropy-loss-fusion --apply-rope-fusion",
            ),
        ),
        Refused(
            _ONE_MODEL,
            Names(
                microsoft="--transformer-impl --no-persist-layer-norm --disable-mem-efficient-ln",
                others="--use-mcore-models --use-legacy-models --spec --deprecated-use-mcore-models "
                "--use-fused-rmsnorm --use-transformer-engine-op-fuser",
            ),
        ),
        Refused(
            "8-bit training is not supported: give --bf16",
            Names(
                microsoft="--fp8-e4m3 --fp8-hybrid --no-fp8-wgrad --fp8-margin --fp8-interval "
                "--fp8-amax-history-len --fp8-amax-compute-algo",
                others="--fp8-format",
            ),
        ),
    ),
    notes={
        "--no-bias-gelu-fusion": "GELU is the exact one in the forks with it, and its approximation without: "
        "--activation gelu is the exact one",
        "--no-query-key-layer-scaling": "the scaling changes nothing but rounding: it is undone inside the softmax",
    },
)
