"""Models of Hugging Face's transformers, in and out: one file for each architecture, a core that reads them all."""

from megatron_ds.checkpoint.huggingface.architectures import ARCHITECTURES
from megatron_ds.checkpoint.huggingface.check import Comparison, check_difference, compare_logits
from megatron_ds.checkpoint.huggingface.exporter import KEPT_FOLDER, Exported, export_huggingface
from megatron_ds.checkpoint.huggingface.importer import Imported, import_huggingface
from megatron_ds.checkpoint.huggingface.tokenizer_ids import check_ids, has_tokenizer, own_tokenizer

__all__ = [
    "ARCHITECTURES",
    "KEPT_FOLDER",
    "Comparison",
    "Exported",
    "Imported",
    "check_difference",
    "check_ids",
    "compare_logits",
    "export_huggingface",
    "has_tokenizer",
    "import_huggingface",
    "own_tokenizer",
]
