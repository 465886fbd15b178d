"""megatron_ds: pretrain GPT with Megatron tensor parallelism, DeepSpeed ZeRO and DeepSpeed pipelines."""

__version__ = "0.1.0"
