"""12 straight steps are 5 + 7 and 1 + 11, to the bit: with dropout, evaluations in between, on real text.

    python -m benchmarks.resume             # JSON lines
    python -m benchmarks.resume --markdown  # as the table of docs/numerics.md

Each part runs in processes of its own, saves and loads as pretrain_gpt.py does, and notes on every rank: loss, gradient
norm, learning rate, a hash of the samples that went into the engine, a hash of the random state, and validation losses.
Runs on CPU. Exits with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.data import TrainingOrder, build_gpt_datasets, samples_needed
from megatron_ds.data.batch import Batch
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.data.samples import batch_hash
from megatron_ds.models import gpt_layers, whole_model_specs
from megatron_ds.training.batches import rank_batches
from megatron_ds.training.evaluation import mean_loss
from megatron_ds.training.saving import CheckpointSaver
from tests.dist.pool import run_ranks

STEPS, EVAL_INTERVAL = 12, 4
CASES = (
    Case(2, 2, 2, 1, "fp32", dropout=0.1, micro_batch_size=2),
    Case(2, 2, 2, 1, "bf16", dropout=0.1, micro_batch_size=2),
    Case(2, 1, 2, 2, "bf16", dropout=0.1, micro_batch_size=2),
    Case(2, 1, 2, 3, "bf16", dropout=0.1, micro_batch_size=2),
)


@dataclass
class Record:
    """What one rank saw, by step. Everything is compared to the bit.

    Attributes:
        losses: training loss.
        norms: gradient norm.
        learning_rates: the rate.
        batch_hashes: SHA-1 of the samples that this rank's engine got.
        random_states: SHA-1 of the state of the dropout stream after the step.
        validation_losses: where there was an evaluation.
        facts: what is in force.
    """

    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    learning_rates: dict[int, float] = field(default_factory=dict)
    batch_hashes: dict[int, str] = field(default_factory=dict)
    random_states: dict[int, str] = field(default_factory=dict)
    validation_losses: dict[int, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def after(self, step: int) -> Record:
        """The part of the record that comes after `step`."""
        parts = {name: value for name, value in vars(self).items() if name != "facts"}
        return Record(
            **{name: {key: value for key, value in part.items() if key > step} for name, part in parts.items()},
            facts=self.facts,
        )


def write_corpus(folder: Path) -> str:
    """Writes the sources of Python's `json` package as .bin/.idx, one document a file, one token a byte.

    Returns:
        The prefix for ``--data-path``.
    """
    prefix = str(folder / "corpus_text_document")
    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        for file in sorted(Path(json.__file__).parent.glob("*.py")):
            builder.add_document(np.frombuffer(file.read_bytes(), np.uint8))
    return prefix


def train_part(case: Case, prefix: str, folder: Path, start: int, end: int, save_after: tuple[int, ...]) -> Record:
    """Trains steps `start` + 1 to `end` on this rank.

    Args:
        case: the configuration.
        prefix: of the corpus.
        folder: of checkpoints.
        start: a step after which there is a checkpoint; 0 begins anew.
        end: last step.
        save_after: steps after which a checkpoint is written.
    """
    tiny = TinyRun(_on_corpus(case, prefix))
    run, engine, mpu = tiny.run, tiny.engine, tiny.mpu
    datasets = build_gpt_datasets(
        run.data,
        seq_length=run.model.seq_length,
        seed=run.training.seed,
        samples=samples_needed(run),
        is_builder=mpu.global_rank == 0,
        wait=dist.barrier,
    )
    assert datasets.train is not None
    if start > 0:
        found = find_checkpoint(folder / str(start))
        engine.load(found.folder, found.tag)
    assert engine.progress.step == start
    specs = whole_model_specs(partial(gpt_layers, run.model), mpu.topology)
    saver = CheckpointSaver(run, specs, engine, mpu, TrainingOrder.of(run))
    batches = rank_batches(run, datasets.train, mpu, consumed_samples=engine.progress.consumed_samples)
    record = Record(facts=tiny.facts())
    while engine.progress.step < end:
        micro_batches = next(batches)
        result = engine.train_step(micro_batches)
        step = engine.progress.step
        record.losses[step] = float(result.loss)
        record.norms[step] = result.grad_norm
        record.learning_rates[step] = result.learning_rate
        record.batch_hashes[step] = _hash_of(micro_batches)
        record.random_states[step] = hashlib.sha1(torch.get_rng_state().numpy().tobytes()).hexdigest()
        if step % EVAL_INTERVAL == 0:
            record.validation_losses[step] = mean_loss(run, engine, datasets.valid["all"], mpu)
        if step in save_after:
            saver(folder / str(step))
    return record


def _on_corpus(case: Case, prefix: str) -> Case:
    schedule = ("--lr-decay-style", "cosine", "--lr-warmup-iters", "3", "--train-iters", str(STEPS))
    data = ("--data-path", prefix, "--split", "80,20,0", "--vocab-size", "256", "--eval-iters", "2")
    return replace(case, more=(*case.more, *schedule, *data))


def _hash_of(micro_batches: list[Batch]) -> str:
    """Hash of the samples from which the batches were made."""
    samples = [torch.cat((batch.tokens, batch.labels[:, -1:]), 1).numpy() for batch in micro_batches]
    return batch_hash(np.concatenate(samples))


@dataclass(frozen=True)
class Comparison:
    """Records of all ranks: of the straight run, and of the runs that stopped, by the step at which they did."""

    straight: list[Record]
    until_stop: list[Record]
    resumed: dict[int, list[Record]]

    def differences(self) -> list[str]:
        """What is not equal to the bit, in words; empty when all is well."""
        found = []
        parts = {"before the stop": (self.until_stop, 0)} | {
            f"resumed at {stop}": (records, stop) for stop, records in self.resumed.items()
        }
        for name, (records, stop) in parts.items():
            for rank, (record, straight) in enumerate(zip(records, self.straight, strict=True)):
                wanted = vars(straight.after(stop))
                for quantity, values in vars(record).items():
                    expected = wanted[quantity]
                    if name == "before the stop" and quantity != "facts":
                        expected = {step: value for step, value in expected.items() if step <= max(record.losses)}
                    if values != expected:
                        found.append(f"{name}, rank {rank}: {quantity} {values} for {expected}")
        return found


def compare(case: Case, folder: Path, stops: tuple[int, ...] = (1, 5)) -> Comparison:
    """Runs `case` straight, up to the last stop, and on from each stop, in worlds of their own.

    Args:
        case: the configuration.
        folder: an empty one, for the corpus and the checkpoints.
        stops: the steps at which a run stops.
    """
    common: dict[str, Any] = {"case": case, "prefix": write_corpus(folder), "folder": folder}

    def part(start: int, end: int, save_after: tuple[int, ...] = ()) -> list[Record]:
        return run_ranks(
            case.world_size, train_part, timeout=240, start=start, end=end, save_after=save_after, **common
        )

    return Comparison(
        straight=part(0, STEPS),
        until_stop=part(0, max(stops), stops),
        resumed={stop: part(stop, STEPS) for stop in stops},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    options = parser.parse_args()
    columns = ("TP·PP·DP", "ZeRO", "precision", "12 = 1 + 11 = 5 + 7", "last loss", "last learning rate", "last batch")
    if options.markdown:
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            comparison = compare(case, Path(folder))
        differences = comparison.differences()
        failed += bool(differences)
        last = comparison.straight[0]
        if options.markdown:
            cells = (
                f"{case.tp}·{case.pp}·{case.dp}",
                case.zero,
                case.precision,
                "differs" if differences else "equal to the bit",
                last.losses[STEPS],
                f"{last.learning_rates[STEPS]:.3e}",
                last.batch_hashes[STEPS][:12],
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        else:
            row = {"tp": case.tp, "pp": case.pp, "dp": case.dp, "zero": case.zero, "precision": case.precision}
            print(json.dumps({**row, "passed": not differences, "differences": differences, **vars(last)}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
