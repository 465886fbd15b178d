"""Flags of others about data and tokenizers."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

_MAPPED = "leave it out: data is always memory-mapped"
_T5 = "T5 is not supported"
_OWN_INDEX = "leave it out: sample indices are made beside the data, or in --data-cache-path"
_ALWAYS_ALL = "leave it out: all samples are used, in an order that follows from the seed"

DATA = Topic(
    "Data and tokenizers",
    accepted=Names(
        both="--data-path --split --seq-length --vocab-file --merge-file --vocab-extra-ids --tokenizer-type "
        "--num-workers --dataloader-type --reset-position-ids --reset-attention-mask --eod-mask-loss "
        "--mask-prob --short-seq-prob",
        bloom="--train-weighted-split-paths --valid-weighted-split-paths --test-weighted-split-paths "
        "--tokenizer-name-or-path",
        microsoft="--train-data-path --valid-data-path --test-data-path --data-cache-path --vocab-size "
        "--tokenizer-model",
    ),
    renamed=(Renamed("seq_length", Names(both="--encoder-seq-length", others="--max-seq-length --sequence-length")),),
    refused=(
        Refused(_MAPPED, Names(both="--data-impl --mmap-warmup", others="--dataset-impl --no-mmap-bin-files")),
        Refused(
            "give the file's text with --train-weighted-split-paths", Names(bloom="--train-weighted-split-paths-path")
        ),
        Refused(
            "give the file's texts with --valid-weighted-split-paths", Names(bloom="--valid-weighted-split-paths-path")
        ),
        Refused(
            "give the file's texts with --test-weighted-split-paths", Names(bloom="--test-weighted-split-paths-path")
        ),
        Refused(
            "give the prefixes with --train-data-path, --valid-data-path and --test-data-path",
            Names(others="--per-split-data-args-path"),
        ),
        Refused("give --data-path with the folder in each prefix", Names(microsoft="--aml-data-download-path")),
        Refused("leave it out: --num-workers is for all sets", Names(bloom="--valid-num-workers")),
        Refused(_ALWAYS_ALL, Names(both="--sample-rate")),
        Refused(
            "leave it out: after an epoch the next one follows, shuffled anew",
            Names(microsoft="--repeated-dataloader --train-data-exact-num-epochs"),
        ),
        Refused(
            _OWN_INDEX,
            Names(
                microsoft="--train-idx-path --train-desc-path --train-doc-idx-path --train-sample-idx-path "
                "--train-shuffle-idx-path"
            ),
        ),
        Refused(
            "leave it out: `megatron-ds data show --step N` tells which samples a step was trained on",
            Names(microsoft="--return-data-index"),
        ),
        Refused(
            "not supported: give the tokenizer's tokenizer.json, which needs no code",
            Names(microsoft="--trust-remote-code"),
        ),
        Refused(
            "not supported: the loss is the mean over all tokens",
            Names(bloom="--reweight-loss-based-on-position-frequency"),
        ),
        Refused("leave it out: prefix_lm never counts the prefix in the loss", Names(bloom="--loss-on-targets-only")),
        Refused(_T5, Names(both="--decoder-seq-length", bloom="--noise-density --mean-noise-span-length")),
        Refused(
            "not supported: the data is read by our own training alone",
            Names(microsoft="--use-dataset-only"),
        ),
        Refused(
            "leave it out: `bash scripts/quickstart.sh` makes data of the Python sources it finds",
            Names(others="--mock-data"),
        ),
        Refused(
            "leave it out: masks are made where attention needs them",
            Names(others="--no-create-attention-mask-in-dataloader"),
        ),
    ),
    notes={
        "--data-path": "token files of the forks are read as they are. Shares of a blend are exact over the run",
        "--split": "cuts the documents in their order, as in the forks, but for one document at a seam",
        "--seq-length": "GPT: samples of as many tokens, cut from one stream of documents that begins a new shuffle at "
        "each epoch",
        "--num-workers": "default 0, not 2",
        "--dataloader-type": "`cyclic` shuffles the samples of the run once, not those of each epoch",
        "--tokenizer-type": "`PretrainedFromHF` is called `HFTokenizer`, `GPTSentencePieceTokenizer` "
        "`SentencePieceTokenizer`; the old names work. Must be given: the forks take "
        "GPT2BPETokenizer in pretrain_gpt.py and BertWordPieceLowerCase in pretrain_bert.py without it",
        "--vocab-size": "all ids in use; of NullTokenizer, Microsoft's fork puts an end-of-document id on top",
        "--reset-attention-mask": "the end-of-document token belongs to its own document",
        "--valid-weighted-split-paths": "each set is evaluated and logged under its name, as in BLOOM's fork",
        "--mask-prob": "of a sample's tokens; what is masked as one is --bert-mask-type",
    },
)
