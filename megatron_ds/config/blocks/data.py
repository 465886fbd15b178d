"""Options of data and tokenizers."""

from __future__ import annotations

from typing import Literal

from megatron_ds.config.option import OptionBlock, option

# Switches of `DataConfig` that have to know where documents end.
DOCUMENT_OPTIONS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


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
    mask_prob: float = option(
        0.15,
        "BERT: share of a sample's tokens that are masked and predicted.",
        aliases=("--masked-lm-prob",),
        gt=0,
        lt=1,
    )
    bert_mask_type: Literal["token", "word", "ngram"] = option(
        "ngram",
        "BERT: what is masked as one: a token, a whole word with all its pieces, or a run of 1 to --bert-max-ngram "
        "whole words, with probabilities proportional to 1/length.",
    )
    bert_max_ngram: int = option(3, "BERT: words in the longest run that is masked as one.", ge=1, le=100)
    short_seq_prob: float = option(
        0.1,
        "BERT: share of samples that are made for a length drawn from 2 tokens to what fits, not for --seq-length.",
        ge=0,
        le=1,
    )
