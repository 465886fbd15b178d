"""Text to token ids and back. Imports no torch, and each tokenizer library only when it is asked for."""

from megatron_ds.tokenizers.backends import BACKENDS, with_backend
from megatron_ds.tokenizers.base import FlatIds, Tokenizer, TokenizerOptions
from megatron_ds.tokenizers.build import build_tokenizer

__all__ = ["BACKENDS", "FlatIds", "Tokenizer", "TokenizerOptions", "build_tokenizer", "with_backend"]
