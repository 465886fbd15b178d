"""Flags of the forks' tools: preprocessing, finetuning and evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

FINETUNING = Topic(
    "Finetuning: tasks/main.py",
    accepted=Names(both="--task --train-data --valid-data --epochs --pretrained-checkpoint --keep-last --num-classes"),
    refused=(Refused("leave it out: --micro-batch-size is for evaluation too", Names(both="--eval-micro-batch-size")),),
    clashes={
        "--keep-last": "leave it out: the last batch is kept always. Here --keep-last N is how many checkpoints stay",
        "--num-classes": "leave it out: finetune.py takes the number of classes from its task",
    },
    notes={
        "--task": "start finetune.py; LAMBADA and WIKITEXT103 are tasks of `megatron-ds evaluate`",
        "--epochs": "default 3, where --train-iters is not given",
        "--valid-data": "files or folders, each evaluated by itself at the end of every epoch",
        "--pretrained-checkpoint": "ours at any layout, Hugging Face's or Megatron's, as it is",
    },
)

EVALUATION = Topic(
    "Evaluation without finetuning: tasks/main.py --task LAMBADA or WIKITEXT103, and tasks/eval_harness",
    refused=(
        Refused(
            "give it to `megatron-ds evaluate --load DIR --task …`, not to training",
            Names(both="--strict-lambada --overlapping-eval"),
        ),
        Refused(
            "give --task lm_eval:NAME … to `megatron-ds evaluate --load DIR`, for tasks of lm-eval-harness",
            Names(both="--task_list"),
        ),
        Refused("give --output FILE to `megatron-ds evaluate`", Names(both="--results_path")),
        Refused("give it to `megatron-ds evaluate`, not to training", Names(microsoft="--num_fewshot")),
        Refused(
            "leave it out: `megatron-ds evaluate` needs no such choice",
            Names(both="--adaptive_seq_len", bloom="--micro_bs_multiplier"),
        ),
        Refused("give --dtype fp32 to `megatron-ds evaluate`", Names(both="--eval_fp32")),
        Refused(
            "leave it out: `megatron-ds evaluate` writes one file with all results at the end",
            Names(bloom="--intermed_results --bootstrap_iters"),
        ),
    ),
)

_EVALUATE = "score it with `megatron-ds evaluate --load DIR --task {}`"

# What to do instead of giving a value that a fork's option takes and ours, which is the same otherwise, does not.
VALUES: Mapping[str, Mapping[str, str]] = {
    "task.task": {
        "LAMBADA": _EVALUATE.format("LAMBADA"),
        "WIKITEXT103": _EVALUATE.format("WIKITEXT103"),
        "ICT-ZEROSHOT-NQ": "retrievers are not supported",
        "RET-FINETUNE-NQ": "retrievers are not supported",
    },
    "optimizer.lr_decay_style": {"inverse-square-root": "not supported: use constant, linear or cosine"},
    "data.tokenizer_type": {"HFAutoTokenizer": "use HFTokenizer"},
}

# Flags of the same programs for `megatron-ds evaluate`, which has a parser of its own. Flags of a run are not listed:
# `TOLD_BY_CHECKPOINT` is what is said of them.
EVALUATE = Topic(
    "megatron-ds evaluate",
    accepted=Names(
        both="--task --load --valid-data --strict-lambada --overlapping-eval --seq-length --batch-size "
        "--tokenizer-type --vocab-file --merge-file --tensor-model-parallel-size --pipeline-model-parallel-size",
        bloom="--tokenizer-name-or-path",
        microsoft="--tokenizer-model --num_fewshot",
    ),
    renamed=(
        Renamed("batch_size", Names(both="--micro-batch-size")),
        Renamed("output", Names(both="--results_path")),
    ),
    refused=(
        Refused("give --task lm_eval:NAME …, for tasks of lm-eval-harness", Names(both="--task_list")),
        Refused("give --dtype, where it is not that of the training", Names(both="--fp16 --bf16 --eval_fp32")),
        Refused(
            "leave it out: there is no such choice",
            Names(both="--adaptive_seq_len", bloom="--micro_bs_multiplier --intermed_results --bootstrap_iters"),
        ),
    ),
    notes={
        "--task": "LAMBADA and WIKITEXT103; VALIDATION for a run's own sets; lm_eval:NAME for lm-eval-harness",
        "--seq-length": "default: that of the training",
        "--batch-size": "texts of a replica at the same time",
        "--tokenizer-type": "default: the tokenizer that the checkpoint names",
        "--tensor-model-parallel-size": "need not be that of the training; processes beyond TP x PP are replicas",
        "--strict-lambada": "the whole last word by its pieces, as in the forks",
    },
)
TOLD_BY_CHECKPOINT = "leave it out: the checkpoint tells what its model is, and nothing is trained"

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
        "--vocab-size": "for NullTokenizer, without a default; it has no end-of-document id of its own here",
        "--log-interval": "default 1000, as in Microsoft's fork",
    },
)
