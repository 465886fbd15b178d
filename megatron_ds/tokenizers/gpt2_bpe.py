"""GPT-2's byte-level BPE from its two files."""

from __future__ import annotations

from pathlib import Path

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.fast import FastTokenizer

END_OF_TEXT = "<|endoftext|>"


def load_gpt2_bpe_tokenizer(vocab_file: Path, merge_file: Path, vocab_extra_ids: int = 0) -> FastTokenizer:
    """Builds GPT-2's tokenizer from ``vocab.json`` (or ``encoder.json``) and ``merges.txt`` (or ``vocab.bpe``).

    The end of a document is ``<|endoftext|>`` when the vocabulary has it. `vocab_extra_ids` sentinels get ids after
    the vocabulary.

    Raises:
        ConfigError: the files are no byte-level BPE.
    """
    import tokenizers

    try:
        model = tokenizers.models.BPE.from_file(str(vocab_file), str(merge_file))
    except Exception as error:  # The library raises bare Exception for whatever is wrong in the files.
        raise ConfigError(
            Problem(
                f"{vocab_file} and {merge_file} are not the two files of a byte-level BPE: {error}",
                advice="give --vocab-file vocab.json and --merge-file merges.txt of the same tokenizer",
            )
        ) from None
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    eod_id: int | None = backend.token_to_id(END_OF_TEXT)
    if eod_id is not None:
        backend.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return FastTokenizer(backend, eod_id, vocab_extra_ids)
