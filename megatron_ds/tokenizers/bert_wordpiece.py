"""BERT's WordPiece from its vocab.txt."""

from __future__ import annotations

from pathlib import Path

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.fast import FastTokenizer

_UNKNOWN, _NEEDED = "[UNK]", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class BertWordPieceTokenizer(FastTokenizer):
    """BERT's tokenizer: words cut at spaces, punctuation and Chinese characters, then into pieces.

    The end of a document is ``[EOS]`` when there is such a token. As in Megatron, sentinels come with ``[BOS]`` and
    ``[EOS]`` before them: BERT's vocabulary has neither, and T5 needs both.

    Attributes:
        pad_id: id of ``[PAD]``.
        cls_id: id of ``[CLS]``.
        sep_id: id of ``[SEP]``.
        mask_id: id of ``[MASK]``.

    Args:
        vocab_file: ``vocab.txt``, one token per line.
        lower_case: whether letters become small and lose their accents.
        vocab_extra_ids: sentinels that get ids after the vocabulary.

    Raises:
        ConfigError: the file is not BERT's vocabulary: one of its five special tokens is missing.
    """

    def __init__(self, vocab_file: Path, *, lower_case: bool, vocab_extra_ids: int = 0) -> None:
        import tokenizers

        vocab = _read_vocabulary(vocab_file)
        backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token=_UNKNOWN))
        backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)
        backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        backend.decoder = tokenizers.decoders.WordPiece()
        more = ("[BOS]", "[EOS]")
        special = [*_NEEDED, *(name for name in more if vocab_extra_ids or name in vocab)]
        backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in special])
        self.pad_id: int = vocab["[PAD]"]
        self.cls_id: int = vocab["[CLS]"]
        self.sep_id: int = vocab["[SEP]"]
        self.mask_id: int = vocab["[MASK]"]
        super().__init__(backend, backend.token_to_id("[EOS]"), vocab_extra_ids)


def _read_vocabulary(file: Path) -> dict[str, int]:
    try:
        # Not splitlines: some tokens are themselves line separators of Unicode.
        lines = file.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(_not_bert(file, f"it is not UTF-8 ({error})")) from None
    tokens = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocab = {token: number for number, token in enumerate(tokens)}
    missing = [name for name in _NEEDED if name not in vocab]
    if missing:
        raise ConfigError(_not_bert(file, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"))
    return vocab


def _not_bert(file: Path, why: str) -> Problem:
    return Problem(
        f"{file} is not the vocabulary of a BERT: {why}",
        advice="give --vocab-file the vocab.txt, one token per line, of a BERT tokenizer",
    )
