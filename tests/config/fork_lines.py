"""Argument lists as they stand in scripts of the forks, with what has to change in each of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ForkLine:
    """A script's arguments.

    Attributes:
        name: of the script.
        family: of the model; None for finetuning.
        processes: how many the script starts.
        arguments: the line as it comes.
        changes: by flag, what its message says to write instead; nothing where the message says to leave it out.
        added: what a message asks for besides.
        others: parts of the messages that are not about one flag.
        deepspeed: the script's DeepSpeed JSON.
        deepspeed_changes: its keys that a message says to change; None takes one out.
        values: what the resolved run has, by path.
    """

    name: str
    family: str | None
    processes: int
    arguments: str
    changes: Mapping[str, str]
    added: str = ""
    others: tuple[str, ...] = ()
    deepspeed: Mapping[str, Any] | None = None
    deepspeed_changes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        """The line as it comes, without its DeepSpeed JSON."""
        return shlex.split(self.arguments)

    def changed_words(self) -> list[str]:
        """The line as the messages advise."""
        words: list[str] = []
        for word in self.words():
            if word.startswith("--"):
                kept = word not in self.changes
                words += [] if kept else shlex.split(self.changes[word])
            words += [word] if kept else []
        return words + shlex.split(self.added)


_SHAPE_176B = "--num-layers 70 --hidden-size 14336 --num-attention-heads 112"

BLOOM_176B = ForkLine(
    "bigscience tr11-176B-ml.slurm",
    "gpt",
    384,
    f"--tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 {_SHAPE_176B} "
    "--pp-partition-method 'type:transformer|embedding' --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 2 --rampup-batch-size 192 16 9_765_625 --global-batch-size 2048 --train-samples 220_000_000 "
    "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path bloom-tokenizer --init-method-std 0.0048 "
    "--embed-layernorm --bf16 --seed 42 --position-embedding-type alibi --checkpoint-activations "
    "--abort-on-unmet-fused-kernel-constraints --kill-switch-path kill-switch --pad-vocab-size-to 250880 "
    "--optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --lr 6e-5 --min-lr 6e-6 "
    "--lr-decay-style cosine --lr-decay-samples 200_000_000 --lr-warmup-samples 183_105 --clip-grad 1.0 "
    "--weight-decay 1e-1 --exit-duration-in-mins 5990 --log-interval 1 --save-interval 100 --eval-interval 1000 "
    "--eval-iters 1 --tensorboard-dir tensorboard --tensorboard-queue-size 5 --log-timers-to-tensorboard "
    "--log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard --save checkpoints --load checkpoints "
    "--train-weighted-split-paths-path train-splits.txt --valid-weighted-split-paths-path valid-splits.txt "
    "--num-workers 2 --valid-num-workers 0 --data-impl mmap --distributed-backend nccl --deepspeed --zero-stage 0 "
    "--deepspeed-activation-checkpointing",
    changes={
        "--rampup-batch-size": "",
        "--train-samples": "--train-iters 107421",
        "--abort-on-unmet-fused-kernel-constraints": "",
        "--kill-switch-path": "",
        "--optimizer": "",
        "--lr-decay-samples": "--lr-decay-iters 97656",
        "--lr-warmup-samples": "--lr-warmup-iters 89",
        "--tensorboard-queue-size": "",
        "--log-timers-to-tensorboard": "",
        "--log-batch-size-to-tensorboard": "",
        "--log-validation-ppl-to-tensorboard": "",
        "--train-weighted-split-paths-path": "--train-weighted-split-paths 'train: 0.3 0:0.949 en, 0.7 0:0.949 fr'",
        "--valid-weighted-split-paths-path": "--valid-weighted-split-paths 'en: 1 0.949:1 en' 'fr: 1 0.949:1 fr'",
        "--valid-num-workers": "",
        "--data-impl": "",
        "--distributed-backend": "",
        "--zero-stage": "",
    },
    others=("missing: train_iters, data_path",),
    deepspeed={
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 2048,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 0},
        "bf16": {"enabled": True},
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    },
    deepspeed_changes={"zero_optimization": {"stage": 1}},
    values={
        "training.train_iters": 107421,
        "optimizer.lr_decay_iters": 97656,
        "optimizer.lr_warmup_iters": 89,
        "training.checkpoint_activations": True,
        "parallel.zero_stage": 1,
        "model.position_embedding_type": "alibi",
        "data.tokenizer_type": "HFTokenizer",
        "model.pad_vocab_size_to": 250880,
    },
)

_SCALED = {"loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 11}

GPT_1P3B = ForkLine(
    "microsoft ds_pretrain_gpt_1.3B.sh",
    "gpt",
    64,
    "--override-opt_param-scheduler --adam-beta1 0.9 --adam-beta2 0.95 --tensor-model-parallel-size 2 "
    "--init-method-std 0.013 --lr-decay-tokens 300000000000 --lr-warmup-tokens 3000000000 --micro-batch-size 2 "
    "--exit-duration-in-mins 30000000 --global-batch-size 512 --num-layers 24 --hidden-size 2048 "
    "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --train-tokens 300000000000 "
    "--train-samples 292968750 --lr 2.0e-4 --min-lr 1.0e-6 --lr-decay-style cosine --split 949,50,1 "
    "--log-interval 10 --eval-interval 100 --eval-iters 10 --save-interval 100 --weight-decay 0.1 --clip-grad 1.0 "
    "--hysteresis 2 --num-workers 0 --fp16 --seed 1234 --load checkpoints --save checkpoints "
    "--no-async-tensor-model-parallel-allreduce --tensorboard-queue-size 1 --log-timers-to-tensorboard "
    "--log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard --tensorboard-dir tensorboard "
    "--checkpoint-activations --log-optimizer-states-to-tensorboard --vocab-file gpt2-vocab.json "
    "--merge-file gpt2-merges.txt --data-path pile_text_document --data-impl mmap --deepspeed --zero-stage 1 "
    "--pipeline-model-parallel-size 2 --deepspeed-activation-checkpointing",
    changes={
        "--lr-decay-tokens": "--lr-decay-iters 286102",
        "--lr-warmup-tokens": "--lr-warmup-iters 2861",
        "--train-tokens": "--train-iters 286102",
        "--train-samples": "",
        "--no-async-tensor-model-parallel-allreduce": "",
        "--tensorboard-queue-size": "",
        "--log-timers-to-tensorboard": "",
        "--log-batch-size-to-tensorboard": "",
        "--log-validation-ppl-to-tensorboard": "",
        "--log-optimizer-states-to-tensorboard": "",
        "--data-impl": "",
    },
    added="--tokenizer-type GPT2BPETokenizer",
    others=("missing: train_iters, tokenizer_type",),
    deepspeed={
        "train_batch_size": 512,
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 10,
        "zero_optimization": {"stage": 1},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "fp16": {"enabled": True, **_SCALED},
        "wall_clock_breakdown": False,
    },
    values={
        "training.train_iters": 286102,
        "checkpoint.override_lr_scheduler": True,
        "training.initial_loss_scale": 2048.0,
        "training.loss_scale_window": 500,
        "parallel.pipeline_model_parallel_size": 2,
    },
)

GPT_6P7B = ForkLine(
    "microsoft ds_pretrain_gpt_6.7B_dense.sh",
    "gpt",
    64,
    "--override-opt_param-scheduler --adam-beta1 0.9 --adam-beta2 0.95 --tensor-model-parallel-size 8 "
    "--moe-expert-parallel-size 1 --num-experts 1 --moe-loss-coeff 0.01 --moe-train-capacity-factor 1.0 "
    "--moe-eval-capacity-factor 1.0 --moe-min-capacity 4 --init-method-std 0.01 --lr-decay-tokens 260000000000 "
    "--lr-warmup-tokens 375000000 --micro-batch-size 16 --exit-duration-in-mins 30000000 --global-batch-size 1024 "
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--train-tokens 300000000000 --train-samples 439453125 --lr 1.2e-4 --min-lr 1.2e-5 --lr-decay-style cosine "
    "--split 98,2,0 --log-interval 10 --eval-interval 100 --eval-iters 10 --save-interval 1000 --weight-decay 0.1 "
    "--clip-grad 1.0 --hysteresis 2 --num-workers 0 --fp16 --load checkpoints --save checkpoints "
    "--tensorboard-queue-size 1 --log-timers-to-tensorboard --log-batch-size-to-tensorboard "
    "--log-validation-ppl-to-tensorboard --tensorboard-dir tensorboard --checkpoint-activations "
    "--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path 0.7 en 0.3 fr --data-impl mmap "
    "--deepspeed --pipeline-model-parallel-size 1 --no-pipeline-parallel --deepspeed-activation-checkpointing",
    changes={
        "--moe-expert-parallel-size": "",
        "--num-experts": "",
        "--moe-loss-coeff": "",
        "--moe-train-capacity-factor": "",
        "--moe-eval-capacity-factor": "",
        "--moe-min-capacity": "",
        "--lr-decay-tokens": "--lr-decay-iters 123977",
        "--lr-warmup-tokens": "--lr-warmup-iters 178",
        "--train-tokens": "--train-iters 143051",
        "--train-samples": "",
        "--tensorboard-queue-size": "",
        "--log-timers-to-tensorboard": "",
        "--log-batch-size-to-tensorboard": "",
        "--log-validation-ppl-to-tensorboard": "",
        "--data-impl": "",
    },
    added="--tokenizer-type GPT2BPETokenizer",
    others=("missing: train_iters, tokenizer_type", "fp16 is given twice", "bf16 and fp16 are both on"),
    deepspeed={
        "train_batch_size": 1024,
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": 1},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "fp16": {"enabled": False, **_SCALED},
        "bf16": {"enabled": True},
        "curriculum_learning": {"enabled": False, "curriculum_type": "seqlen"},
    },
    deepspeed_changes={"fp16": {"enabled": "auto", **_SCALED}, "bf16": None},
    values={"training.train_iters": 143051, "training.fp16": True, "parallel.zero_stage": 1},
)

_BERT_LARGE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16"

BERT = ForkLine(
    "pretrain_bert_distributed_with_mp.sh",
    "bert",
    8,
    f"--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 {_BERT_LARGE} --micro-batch-size 2 "
    "--global-batch-size 16 --max-absolute-position-embeddings 512 --position-embedding-type absolute "
    "--train-iters 1000000 --save checkpoints --load checkpoints --data-path corpus_text_sentence "
    "--vocab-file vocab.txt --data-impl mmap --split 949,50,1 --distributed-backend nccl --lr 0.0001 "
    "--lr-decay-style linear --min-lr 1.0e-5 --lr-decay-iters 990000 --weight-decay 1e-2 --clip-grad 1.0 "
    "--lr-warmup-fraction .01 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 --fp16",
    changes={
        "--max-absolute-position-embeddings": "--max-position-embeddings 512",
        "--data-impl": "",
        "--distributed-backend": "",
    },
    added="--seq-length 512 --tokenizer-type BertWordPieceLowerCase",
    others=("missing: seq_length, tokenizer_type",),
    values={
        "model.model_type": "bert",
        "model.max_position_embeddings": 512,
        "model.position_embedding_type": "learned_absolute",
        "optimizer.lr_warmup_fraction": 0.01,
    },
)

_FINETUNING = (
    f"--seed 1234 --tokenizer-type BertWordPieceLowerCase --vocab-file bert-vocab.txt "
    f"--pretrained-checkpoint checkpoints/bert_345m --tensor-model-parallel-size 1 {_BERT_LARGE} "
    "--checkpoint-activations --lr-decay-style linear --seq-length 512 --max-position-embeddings 512 --log-interval 10 "
    "--eval-interval 100 --eval-iters 50 --weight-decay 1.0e-1 --fp16"
)

MNLI = ForkLine(
    "finetune_mnli_distributed.sh",
    None,
    8,
    "--task MNLI --train-data MNLI/train.tsv --valid-data MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv --epochs 5 "
    f"--micro-batch-size 8 --lr 5.0e-5 --lr-warmup-fraction 0.065 --save-interval 500000 --save mnli {_FINETUNING} "
    "--keep-last",
    changes={"--keep-last": ""},
    values={
        "task.task": "MNLI",
        "task.valid_data": ["MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv"],
        "task.epochs": 5,
        "model.model_type": "bert",
        "model.num_classes": 3,
        "checkpoint.keep_last": None,
    },
)

RACE = ForkLine(
    "finetune_race_distributed.sh",
    None,
    8,
    "--task RACE --train-data RACE/train/middle --valid-data RACE/dev/middle RACE/dev/high --epochs 3 "
    "--micro-batch-size 4 --lr 1.0e-5 --lr-warmup-fraction 0.06 --save-interval 100000 --save race --clip-grad 1.0 "
    f"--hidden-dropout 0.1 --attention-dropout 0.1 {_FINETUNING}",
    changes={},
    values={"task.task": "RACE", "task.train_data": ["RACE/train/middle"], "training.micro_batch_size": 4},
)

LINES = (BLOOM_176B, GPT_1P3B, GPT_6P7B, BERT, MNLI, RACE)

# tools/preprocess_data.py as the forks' README files start it, the second one with Microsoft's tokenizer flag.
PREPROCESS = shlex.split(
    "--input corpus.json --output-prefix corpus --vocab-file bert-vocab.txt --dataset-impl mmap "
    "--tokenizer-type BertWordPieceLowerCase --split-sentences --workers 8"
)
PREPROCESS_WITH_HF = shlex.split(
    "--input corpus.json --output-prefix corpus --tokenizer-type HFTokenizer --hf-autotokenizer-model gpt2 "
    "--append-eod --workers 8 --partitions 2"
)

# examples/evaluate_zeroshot_gpt.sh, whose command is `megatron-ds evaluate` here.
LAMBADA = shlex.split(
    "--task LAMBADA --valid-data lambada_test.jsonl --tokenizer-type GPT2BPETokenizer --strict-lambada "
    "--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --load checkpoints/gpt2_345m "
    "--tensor-model-parallel-size 1 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --batch-size 8 "
    "--checkpoint-activations --seq-length 1024 --max-position-embeddings 1024 --log-interval 10 --fp16 "
    "--no-load-optim --no-load-rng"
)
