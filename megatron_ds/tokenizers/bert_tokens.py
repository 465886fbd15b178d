"""What BERT's samples need to know of a tokenizer: its special tokens, and which pieces continue a word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.base import Tokenizer
from megatron_ds.tokenizers.fast import FastTokenizer

_NAMES = ("[CLS]", "[SEP]", "[MASK]", "[PAD]")


@dataclass(frozen=True)
class BertTokens:
    """Ids that BERT's samples are made with.

    Attributes:
        cls_id: begins a sample.
        sep_id: ends each of its two segments.
        mask_id: stands for most of the tokens that are to be predicted.
        pad_id: fills a sample up.
        special_ids: these four and all other special tokens (``[UNK]``, ``[EOS]`` …), in ascending order: they are
            neither masked nor put in a token's place.
        vocab_size: ids in use.
        continues_word: whether a piece goes on with the word of the piece before it (``##ing``), bool [vocab_size];
            None when the tokenizer has no such mark.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    special_ids: tuple[int, ...]
    vocab_size: int
    continues_word: NDArray[np.bool_] | None


def bert_tokens(tokenizer: Tokenizer) -> BertTokens:
    """Finds BERT's tokens in a tokenizer.

    Raises:
        ConfigError: it has no ``[CLS]``, ``[SEP]``, ``[MASK]`` or ``[PAD]``.
    """
    vocab = tokenizer.vocab() if isinstance(tokenizer, FastTokenizer) else {}
    missing = [name for name in _NAMES if name not in vocab]
    if missing:
        raise ConfigError(
            Problem(
                f"the tokenizer has no {' and no '.join(missing)}: BERT's samples are made with "
                f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}",
                advice="use BertWordPieceLowerCase or BertWordPieceCase, or an HFTokenizer that has these tokens",
            )
        )
    cls_id, sep_id, mask_id, pad_id = (vocab[name] for name in _NAMES)
    assert isinstance(tokenizer, FastTokenizer), "it has a vocabulary"
    prefix = tokenizer.continuation_prefix
    continues = None
    if prefix:
        continues = np.zeros(tokenizer.vocab_size, np.bool_)
        continues[[number for piece, number in vocab.items() if piece.startswith(prefix)]] = True
    special_ids = tuple(sorted({cls_id, sep_id, mask_id, pad_id, *tokenizer.special_ids()}))
    return BertTokens(cls_id, sep_id, mask_id, pad_id, special_ids, tokenizer.vocab_size, continues)
