"""12 straight steps are 5 + 7 and 1 + 11, to the bit: with dropout, evaluations in between, on real text.

    python -m benchmarks.resume             # JSON lines
    python -m benchmarks.resume --models    # models in which every option occurs instead: 6 steps are 3 + 3
    python -m benchmarks.resume --markdown  # as the table of docs/numerics.md

Each part runs in processes of its own, saves and loads as pretrain_gpt.py does, and notes on every rank: loss, gradient
norm, learning rate, hashes of the samples that went into the engine, of the weights and of the random state, and
validation losses.
Runs on CPU. Exits with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.tiny_run import MODELS, Case, TinyRun
from megatron_ds.data import build_gpt_datasets, samples_needed
from megatron_ds.data.batch import Batch
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.data.samples import batch_hash
from megatron_ds.training.batches import rank_batches
from megatron_ds.training.evaluation import mean_losses
from tests.dist.pool import run_ranks

STEPS, EVAL_INTERVAL = 12, 4
CASES = (
    Case(2, 2, 2, 1, "fp32", dropout=0.1, micro_batch_size=2),
    Case(2, 2, 2, 1, "bf16", dropout=0.1, micro_batch_size=2),
    Case(2, 1, 2, 2, "bf16", dropout=0.1, micro_batch_size=2),
    Case(2, 1, 2, 3, "bf16", dropout=0.1, micro_batch_size=2),
)

MODEL_STEPS, MODEL_STOP = 6, 3
_FULL = ("--recompute-granularity", "full")
# At this size ZeRO-3 would leave all parameters whole.
_ALL_PARTITIONED = json.dumps(
    {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}}
)
# With `CASES`, every value that an option of the model or a lever can have on a CPU, by what the models resemble.
MODEL_CASES: Mapping[str, Case] = {
    "Llama 3.1": Case(
        *(2, 2, 1, 1, "fp32", False, 2),
        global_batch_size=4,
        num_layers=2,
        dropout=0.1,
        more=(
            *MODELS["Llama 3.1"],
            *("--rope-low-freq-factor", "0.5", "--rope-high-freq-factor", "6", "--layernorm-epsilon", "1e-6"),
            *(
                "--pad-vocab-size-to",
                "320",
                "--seed",
                "7",
                "--sequence-parallel",
                "--recompute-granularity",
                "selective",
            ),
        ),
    ),
    "ALiBi, window": Case(
        *(1, 1, 2, 3, "fp32", False, 4),
        num_layers=2,
        dropout=0.2,
        more=(*MODELS["ALiBi, window"], *_FULL, "--recompute-num-layers", "2"),
        deepspeed_json=_ALL_PARTITIONED,
    ),
    "Pythia": Case(
        *(1, 2, 1, 1, "fp32", False, 4),
        dropout=0.1,
        more=(*MODELS["Pythia"], *_FULL, "--recompute-method", "block", "--recompute-num-layers", "1"),
    ),
    "GLM": Case(
        *(2, 1, 1, 0, "fp32", True, 4),
        num_layers=2,
        dropout=0.1,
        more=(
            *MODELS["GLM"],
            *("--deepnorm-alpha", "1.5", "--deepnorm-beta", "0.6"),
            *(*_FULL, "--distribute-saved-activations", "--checkpoint-in-cpu"),
        ),
    ),
    "OPT, prefix-LM": Case(
        *(1, 2, 1, 0, "fp32", True, 4),
        dropout=0.1,
        more=(
            *MODELS["OPT"],
            *("--prefix-lm", "--max-position-embeddings", "24", "--ffn-hidden-size", "96", "--init-method-std", "0.05"),
            *("--attention-backend", "math", "--pp-partition-method", "layers:1,3"),
        ),
    ),
    "post-LN": Case(1, 1, 2, 2, "fp32", True, 4, dropout=0.1, more=MODELS["post-LN"]),
    "Mistral": Case(1, 1, 2, 1, "fp32", True, 4, dropout=0.1, more=MODELS["Mistral"]),
    "Qwen, SiLU": Case(
        *(2, 1, 1, 1, "bf16", True, 4),
        global_batch_size=4,
        num_layers=2,
        dropout=0.1,
        more=(
            *MODELS["SiLU"],
            *("--position-embedding-type", "rope", "--kv-channels", "16", "--qk-layernorm"),
            *("--disable-bias-linear", "--add-qkv-bias"),
        ),
    ),
}


@dataclass
class Record:
    """What one rank saw, by step. Everything is compared to the bit.

    Attributes:
        losses: training loss.
        norms: gradient norm.
        learning_rates: the rate.
        batch_hashes: SHA-1 of the samples that this rank's engine got.
        weight_hashes: SHA-1 of the parameters that this rank holds after the step.
        random_states: SHA-1 of the state of the dropout stream after the step.
        validation_losses: where there was an evaluation.
        facts: what is in force; with `layers`, the transformer layers of this rank; `layer_runs` and `core_runs`, how
            often each of them and its core of attention ran for one micro-batch of the last step; and
            `whole_parameters`, how many ZeRO-3 does not cut.
    """

    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    learning_rates: dict[int, float] = field(default_factory=dict)
    batch_hashes: dict[int, str] = field(default_factory=dict)
    weight_hashes: dict[int, str] = field(default_factory=dict)
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


def train_part(case: Case, folder: Path, start: int, end: int, save_after: tuple[int, ...]) -> Record:
    """Trains steps `start` + 1 to `end` on this rank.

    Args:
        case: the configuration, with its data.
        folder: of checkpoints.
        start: a step after which there is a checkpoint; 0 begins anew.
        end: last step.
        save_after: steps after which a checkpoint is written.
    """
    tiny = TinyRun(case)
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
        tiny.load(folder / str(start))
    assert engine.progress.step == start
    batches = rank_batches(run, datasets.train, mpu, consumed_samples=engine.progress.consumed_samples)
    record = Record(facts={**tiny.facts(), "layers": len(tiny.blocks), "whole_parameters": _whole_parameters(tiny)})
    layer_runs, core_runs = tiny.count_block_forwards(), tiny.count_core_runs()
    while engine.progress.step < end:
        micro_batches = next(batches)
        layer_runs.clear()
        core_runs.clear()
        result = engine.train_step(micro_batches)
        passes = max(1, len(tiny.blocks)) * len(micro_batches)
        record.facts |= {"layer_runs": len(layer_runs) / passes, "core_runs": len(core_runs) / passes}
        step = engine.progress.step
        record.losses[step] = float(result.loss)
        record.norms[step] = result.grad_norm
        record.learning_rates[step] = result.learning_rate
        record.batch_hashes[step] = _hash_of(micro_batches)
        record.weight_hashes[step] = _hash_of_weights(parameter for _, parameter in engine.named_parameters())
        record.random_states[step] = hashlib.sha1(torch.get_rng_state().numpy().tobytes()).hexdigest()
        if step % EVAL_INTERVAL == 0:
            record.validation_losses[step] = sum(mean_losses(run, engine, datasets.valid["all"], mpu).values())
        if step in save_after:
            tiny.save(folder / str(step))
    return record


def _on_corpus(case: Case, prefix: str, steps: int) -> Case:
    schedule = ("--lr-decay-style", "cosine", "--lr-warmup-iters", "3", "--train-iters", str(steps))
    data = ("--data-path", prefix, "--split", "80,20,0", "--vocab-size", "256", "--eval-iters", "2")
    return replace(case, more=(*case.more, *schedule, *data))


def _hash_of(micro_batches: list[Batch]) -> str:
    """Hash of the samples from which the batches were made."""
    samples = [torch.cat((batch.tokens, batch.labels[:, -1:]), 1).numpy() for batch in micro_batches]
    return batch_hash(np.concatenate(samples))


def _whole_parameters(tiny: TinyRun) -> int:
    """How many parameters this rank holds uncut by ZeRO-3; without ZeRO-3 all."""
    return sum(getattr(parameter, "ds_persist", True) for _, parameter in tiny.engine.named_parameters())


def _hash_of_weights(parameters: Iterable[nn.Parameter]) -> str:
    """Hash of what this rank holds of the parameters: under ZeRO-3 its parts of them."""
    found = hashlib.sha1()
    for parameter in parameters:
        held = getattr(parameter, "ds_tensor", parameter).detach()
        found.update(held.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


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


def compare(case: Case, folder: Path, stops: tuple[int, ...] = (1, 5), steps: int = STEPS) -> Comparison:
    """Runs `case` straight, up to the last stop, and on from each stop, in worlds of their own.

    Args:
        case: the configuration.
        folder: an empty one, for the corpus and the checkpoints.
        stops: the steps at which a run stops.
        steps: of the straight run.
    """
    common: dict[str, Any] = {"case": _on_corpus(case, write_corpus(folder), steps), "folder": folder}

    def part(start: int, end: int, save_after: tuple[int, ...] = ()) -> list[Record]:
        return run_ranks(
            case.world_size, train_part, timeout=240, start=start, end=end, save_after=save_after, **common
        )

    return Comparison(
        straight=part(0, steps),
        until_stop=part(0, max(stops), stops),
        resumed={stop: part(stop, steps) for stop in stops},
    )


def _cells(case: Case, comparison: Comparison) -> tuple[object, ...]:
    """A row of the table, without the model."""
    last = comparison.straight[0]
    step = max(last.losses)
    return (
        f"{case.tp}·{case.pp}·{case.dp}",
        case.zero,
        case.precision,
        "differs" if comparison.differences() else "equal to the bit",
        last.losses[step],
        f"{last.learning_rates[step]:.3e}",
        last.batch_hashes[step][:12],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", action="store_true", help="the models in which every option occurs instead")
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    options = parser.parse_args()
    rows = list(MODEL_CASES.items()) if options.models else [("GPT", case) for case in CASES]
    stops, steps = ((MODEL_STOP,), MODEL_STEPS) if options.models else ((1, 5), STEPS)
    sums = " = ".join([str(steps), *(f"{stop} + {steps - stop}" for stop in stops)])
    columns = (
        *(["model"] if options.models else []),
        *("TP·PP·DP", "ZeRO", "precision", sums, "last loss", "last learning rate", "last batch"),
    )
    if options.markdown:
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = 0
    for model, case in rows:
        with tempfile.TemporaryDirectory() as folder:
            comparison = compare(case, Path(folder), stops, steps)
        differences = comparison.differences()
        failed += bool(differences)
        if options.markdown:
            cells = (*([model] if options.models else []), *_cells(case, comparison))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        else:
            row = {"model": model, **{name: getattr(case, name) for name in ("tp", "pp", "dp", "zero", "precision")}}
            results = {"passed": not differences, "differences": differences, **vars(comparison.straight[0])}
            print(json.dumps({**row, **results}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
