"""Small finetuning runs: files in the tasks' own formats, and what finetune.py runs, inside of a rank."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.cli.finetune_plan import Plan, plan_finetuning
from megatron_ds.engine.distributed import local_device
from megatron_ds.models import model_losses, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.optim.schedule import LearningRateSchedule
from megatron_ds.training.job import UNJUDGED, Evaluation, Judgement
from megatron_ds.training.loop import train
from megatron_ds.training.saving import CheckpointSaver

WORDS = [
    *("good", "great", "fine", "nice", "bad", "awful", "poor", "sad", "the", "film"),
    *("was", "story", "about", "people", "town", "they", "were", "is", "not"),
]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
BERT = (
    *("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "24"),
    *("--residual-connection", "post_ln", "--make-vocab-size-divisible-by", "1"),
    # Predictions that differ: a correlation of nearly equal ones is all rounding.
    *("--init-method-std", "0.2"),
)
GPT = (
    *("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--tokenizer-type", "ByteTokenizer"),
)
NO_DROPOUT = ("--hidden-dropout", "0", "--attention-dropout", "0")


def words(rng: random.Random, count: int) -> str:
    """Some words of the vocabulary."""
    return " ".join(rng.choices(WORDS, k=count))


def write_tsv(path: Path, header: str, rows: list[list[str]]) -> str:
    """A file of GLUE."""
    path.write_text("\n".join("\t".join(row) for row in ([*header.split()], *rows)) + "\n", encoding="utf-8")
    return str(path)


def write_mnli(path: Path, examples: int = 7, seed: int = 0) -> str:
    """Seven examples, by default: no batch size divides them."""
    rng = random.Random(seed)
    labels = ("contradiction", "entailment", "neutral")
    blank = ["-"] * 7
    header = (
        "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
        "sentence1 sentence2 label1 gold_label"
    )
    rows = [[str(number), *blank, words(rng, 6), words(rng, 4), "x", labels[number % 3]] for number in range(examples)]
    return write_tsv(path, header, rows)


def write_stsb(path: Path, examples: int = 7) -> str:
    """Pairs of sentences with a score."""
    rng = random.Random(1)
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    rows = [
        [str(number), *["-"] * 6, words(rng, 5), words(rng, 5), f"{number % 6 * 0.9:.2f}"] for number in range(examples)
    ]
    return write_tsv(path, header, rows)


def write_race(folder: Path, questions: int = 7) -> str:
    """Articles for both levels, with seven questions together."""
    rng = random.Random(2)
    for level, count in (("middle", questions // 2), ("high", questions - questions // 2)):
        (folder / level).mkdir(parents=True)
        text = {
            "article": words(rng, 30),
            "questions": [f"{words(rng, 3)} _ ." for _ in range(count)],
            "options": [[words(rng, 1) for _ in range(4)] for _ in range(count)],
            "answers": ["ABCD"[number % 4] for number in range(count)],
            "id": f"{level}1.txt",
        }
        (folder / level / "1.txt").write_text(json.dumps(text), encoding="utf-8")
    return str(folder)


def write_sft(path: Path, examples: int = 7) -> str:
    """Prompts and responses, of which several fit into a sequence."""
    rng = random.Random(3)
    lines = [{"prompt": words(rng, 1), "response": words(rng, 1 + number % 3)[:12]} for number in range(examples)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def task_flags(task: str, folder: Path) -> list[str]:
    """The flags of a run on a task, whose files are made in a folder: without sizes of batches and layout."""
    vocab = folder / "vocab.txt"
    vocab.write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    if task == "SFT":
        data, model = write_sft(folder / "sft.jsonl"), GPT
    else:
        writers: Mapping[str, Any] = {"MNLI": write_mnli, "STS-B": write_stsb, "RACE": write_race}
        data = writers[task](folder / task if task == "RACE" else folder / f"{task}.tsv")
        model = (*BERT, "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", str(vocab))
    files = ["--train-data", data, "--valid-data", data]
    return [*model, "--task", task, *files, "--lr", "1e-3", "--lr-decay-style", "constant", "--epochs", "2"]


@dataclass
class Outcome:
    """What a run came to, as a reporter hears it.

    Attributes:
        losses: of each step, the sum.
        norms: of each step's gradient.
        evaluations: of the validation sets, by step.
        lines: what a new run begins with.
        layout: TP, PP, DP and ZeRO stage that the engine has.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, Evaluation]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    layout: tuple[int, int, int, int] = (0, 0, 0, 0)

    def step(self, progress: Any, result: Any) -> None:
        """Hears of a step."""
        self.losses.append(float(result.loss))
        self.norms.append(float(result.grad_norm))

    def evaluation(self, progress: Any, split: str, found: Evaluation) -> None:
        """Hears of an evaluation."""
        self.evaluations.append((progress.step, found))

    def restart_clock(self) -> None:
        """Has none."""

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Metrics and losses of each evaluation."""
        return [{**found.metrics, **found.losses} for _, found in self.evaluations]


def plan_of(flags: list[str]) -> Plan:
    """What finetune.py makes of its command line in this world of ranks."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    places = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    device = {"DS_ACCELERATOR": "cpu"} if not dist.is_initialized() or local_device().type == "cpu" else {}
    return plan_finetuning(flags, {"WORLD_SIZE": str(size), **device, **places})


def finetune(flags: list[str]) -> Outcome:
    """Runs what finetune.py runs, on every rank of a world."""
    from megatron_ds.engine.build import build_engine

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    plan = plan_of(flags)
    run, job = plan.resolved.run, plan.job
    parallel = run.parallel
    mpu = ModelParallelUnit.create(
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        local_device(),
        sequence_parallel=parallel.sequence_parallel,
    )
    samples = job.open(None, mpu, {})  # type: ignore[arg-type]
    schedule = LearningRateSchedule.from_config(run.optimizer, run.training.train_iters)
    layers, losses = job.layers(mpu), model_losses(run.model, mpu)
    engine = build_engine(run, plan.resolved.deepspeed, layers, losses, mpu, schedule.learning_rate)
    outcome = Outcome()
    if plan.found is not None:
        engine.load(CheckpointReader(plan.found.folder / plan.found.tag, plan.found.manifest))
    else:
        outcome.lines = job.begin(engine)
    outcome.layout = (mpu.tp_size, mpu.pp_size, mpu.dp_size, engine.zero_stage)  # type: ignore[attr-defined]
    specs = whole_model_specs(partial(job.layers), mpu.topology)
    saver = CheckpointSaver(run, specs, engine, mpu, layers, job.order())

    def save(folder: Path, judgement: Judgement = UNJUDGED) -> None:
        folder.mkdir(exist_ok=True)
        saver(folder, judgement)

    stop_after = int(os.environ.get("STOP_AFTER", "0"))
    train(run, engine, samples, outcome, save, lambda step: "test" if step == stop_after else None)  # type: ignore[arg-type]
    return outcome
