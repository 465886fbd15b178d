"""Flags of the forks' tools: preprocessing, finetuning and evaluation."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Topic

_LM_EVAL = "`megatron-ds evaluate --load DIR` runs tasks of lm-eval-harness; its --help tells the options"

EVALUATION = Topic(
    "Evaluation without finetuning: tasks/main.py --task LAMBADA or WIKITEXT103, and tasks/eval_harness",
    refused=(
        Refused(
            "an option of `megatron-ds evaluate --load DIR --task …`", Names(both="--strict-lambada --overlapping-eval")
        ),
        Refused(_LM_EVAL, Names(both="--task_list --results_path", microsoft="--num_fewshot")),
        Refused(
            "leave it out: `megatron-ds evaluate` pads to the longest text of a batch, and needs no such choice",
            Names(both="--adaptive_seq_len", bloom="--micro_bs_multiplier"),
        ),
        Refused("give --dtype fp32 to `megatron-ds evaluate`", Names(both="--eval_fp32")),
        Refused(
            "not supported: `megatron-ds evaluate` writes one file with all results at the end",
            Names(bloom="--intermed_results --bootstrap_iters"),
        ),
    ),
)

# Flags of tools/preprocess_data.py for `megatron-ds preprocess`, which has a parser of its own.
PREPROCESS = Topic(
    "Preprocessing: tools/preprocess_data.py",
    accepted=Names(
        both="--input --json-keys --split-sentences --keep-newlines --tokenizer-type --vocab-file --merge-file "
        "--append-eod --output-prefix --dataset-impl --workers --log-interval",
        bloom="--tokenizer-name-or-path",
        microsoft="--tokenizer-model --vocab-size --lang --partitions",
    ),
    refused=(
        Refused(
            "give --tokenizer-type HFTokenizer --tokenizer-name-or-path NAME",
            Names(microsoft="--hf_autotokenizer_model"),
        ),
        Refused("give the files' prefixes to `megatron-ds merge-data --input`", Names(bloom="--datasets")),
        Refused(
            "leave it out: padding of the vocabulary is decided when training starts",
            Names(others="--pad-vocab-size-to --make-vocab-size-divisible-by"),
        ),
    ),
    notes={
        "--input": "several files or patterns, packed or not; text, CSV and Parquet as well",
        "--split-sentences": "ours, without nltk and its downloads; few sentences differ ([data.md](data.md))",
        "--tokenizer-type": "`HFAutoTokenizer` is called `HFTokenizer`; `PretrainedFromHF` works",
        "--append-eod": "with --split-sentences too, at the end of the last sentence",
        "--dataset-impl": "`mmap` alone, which need not be given",
        "--workers": "default: all cores. With --partitions it is the number for all of them, as in Microsoft's fork",
        "--vocab-size": "for NullTokenizer, without a default",
        "--log-interval": "default 1000, as in Microsoft's fork",
    },
)
