"""From options to a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.tokenizers.base import Tokenizer, TokenizerOptions
from megatron_ds.tokenizers.bert_wordpiece import BertWordPieceTokenizer
from megatron_ds.tokenizers.gpt2_bpe import load_gpt2_bpe_tokenizer
from megatron_ds.tokenizers.hugging_face import load_hugging_face_tokenizer
from megatron_ds.tokenizers.plain import ByteTokenizer, NullTokenizer
from megatron_ds.tokenizers.sentence_piece import SentencePieceTokenizer

# Names of the forks that our users come from.
OLDER_NAMES = {"PretrainedFromHF": "HFTokenizer", "GPTSentencePieceTokenizer": "SentencePieceTokenizer"}


def build_tokenizer(data: TokenizerOptions, *, vocab_size: int | None = None) -> Tokenizer:
    """Builds the tokenizer that the options name.

    Args:
        data: the options; a `DataConfig` has them.
        vocab_size: number of ids in use, for the NullTokenizer, which has no file that says it.

    Raises:
        ConfigError: no or an unknown type, a needed option or file is missing, or the file is no such tokenizer.
    """
    given = data.tokenizer_type
    kind = OLDER_NAMES.get(given, given) if given is not None else None
    builders: dict[str, Callable[[], Tokenizer]] = {
        "HFTokenizer": lambda: _build_hugging_face(data),
        "GPT2BPETokenizer": lambda: _build_gpt2_bpe(data),
        "SentencePieceTokenizer": lambda: _build_sentence_piece(data),
        "BertWordPieceLowerCase": lambda: _build_bert("BertWordPieceLowerCase", data),
        "BertWordPieceCase": lambda: _build_bert("BertWordPieceCase", data),
        "ByteTokenizer": ByteTokenizer,
        "NullTokenizer": lambda: _build_null(vocab_size),
    }
    if kind is None or kind not in builders:
        found = "no tokenizer type is given" if kind is None else f"unknown tokenizer type {kind!r}"
        raise ConfigError(Problem(found, advice=f"give --tokenizer-type one of: {', '.join(builders)}"))
    if data.vocab_extra_ids and kind in ("ByteTokenizer", "NullTokenizer"):
        raise ConfigError(_no_sentinels(kind, data.vocab_extra_ids))
    return builders[kind]()


def _no_sentinels(kind: str, count: int) -> Problem:
    return Problem(
        f"{kind} has no sentinels, and --vocab-extra-ids asks for {count}",
        sources=(Source("vocab_extra_ids", str(count), "--vocab-extra-ids"),),
        advice="use a tokenizer with a vocabulary file, or leave --vocab-extra-ids out",
    )


def _build_hugging_face(data: TokenizerOptions) -> Tokenizer:
    name = _needed("HFTokenizer", "--tokenizer-name-or-path", data.tokenizer_name_or_path)
    return load_hugging_face_tokenizer(name, data.vocab_extra_ids)


def _build_gpt2_bpe(data: TokenizerOptions) -> Tokenizer:
    vocab = _needed_file("GPT2BPETokenizer", "--vocab-file", data.vocab_file)
    merges = _needed_file("GPT2BPETokenizer", "--merge-file", data.merge_file)
    return load_gpt2_bpe_tokenizer(vocab, merges, data.vocab_extra_ids)


def _build_sentence_piece(data: TokenizerOptions) -> Tokenizer:
    model = _needed_file("SentencePieceTokenizer", "--tokenizer-model", data.tokenizer_model)
    return SentencePieceTokenizer(model, data.vocab_extra_ids)


def _build_bert(kind: str, data: TokenizerOptions) -> Tokenizer:
    vocab = _needed_file(kind, "--vocab-file", data.vocab_file)
    return BertWordPieceTokenizer(
        vocab, lower_case=kind == "BertWordPieceLowerCase", vocab_extra_ids=data.vocab_extra_ids
    )


def _build_null(vocab_size: int | None) -> Tokenizer:
    if vocab_size is None:
        raise ConfigError(
            Problem(
                "NullTokenizer has no vocabulary of its own and --vocab-size is not given", advice="give --vocab-size"
            )
        )
    return NullTokenizer(vocab_size)


def _needed(kind: str, flag: str, value: str | None) -> str:
    if not value:
        raise ConfigError(Problem(f"{kind} needs {flag}, which is not given", advice=f"give {flag}"))
    return value


def _needed_file(kind: str, flag: str, value: str | None) -> Path:
    path = Path(_needed(kind, flag, value))
    if not path.is_file():
        raise ConfigError(
            Problem(
                f"tokenizer file not found: {path}",
                sources=(Source(flag.lstrip("-").replace("-", "_"), str(path), flag),),
                advice=f"give {flag} the path of a file that exists",
            )
        )
    return path
