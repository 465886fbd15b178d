"""What a run reports: one record per logged step and per evaluation, as a log line and as a line of metrics.jsonl."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from megatron_ds.training.run_folder import set_aside, writing_into
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class StepMetrics:
    """One logged optimizer step. The fields are the keys of metrics.jsonl; None means "does not exist here".

    Attributes:
        step: number of the optimizer step, from 1.
        consumed_samples: samples seen since the start of the run, this step included.
        consumed_tokens: the same in tokens.
        losses: what this step trained on, in nats, each under a key of its own: `lm_loss`, the mean over the global
            batch's tokens that count; of a BERT with its binary head also `sop_loss`, the mean over its samples.
        grad_norm: global gradient norm before clipping; not finite when fp16 overflowed.
        learning_rate: what this step used.
        loss_scale: fp16's loss scale; None in fp32 and bf16.
        skipped: steps without an update (fp16 overflow) since the last logged step.
        step_seconds: mean wall-clock time of a step since the last logged step.
        tokens_per_second: over all processes.
        tokens_per_second_per_gpu: per process.
        model_tflops_per_gpu: model operations per second and process, in units of 1e12 (see `training.flops`).
        mfu: share of the GPU's peak, 0 to 1; None on CPU.
        peak_memory_gib: most GPU memory in use so far, in GiB; None on CPU.
    """

    step: int
    consumed_samples: int
    consumed_tokens: int
    losses: Mapping[str, float]
    grad_norm: float
    learning_rate: float
    loss_scale: float | None
    skipped: int
    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float | None
    peak_memory_gib: float | None

    def scalars(self) -> dict[str, float]:
        """The values for monitors, without the step and without what does not exist here."""
        return {f"train/{key}": value for key, value in self.record().items() if key != "step" and value is not None}

    def record(self) -> dict[str, Any]:
        """The line of metrics.jsonl, before what is not finite is taken out."""
        return _with_losses(asdict(self))


@dataclass(frozen=True)
class EvalMetrics:
    """One evaluation. The fields are the keys of metrics.jsonl; so are the names of several losses, and of metrics.

    Attributes:
        step: optimizer steps done when it ran.
        split: ``valid`` or ``test``.
        set: name of the data set; ``all`` for the whole split.
        loss: the sum of the losses, each a mean over its own labels, in nats.
        ppl: perplexity per token, exp(lm_loss); None where there is no such loss.
        losses: the losses by name, where there is more than one.
        metrics: a task's metrics by name.
    """

    step: int
    split: str
    set: str
    loss: float
    ppl: float | None
    losses: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_losses(
        cls,
        *,
        step: int,
        split: str,
        losses: Mapping[str, float],
        set: str = "all",
        metrics: Mapping[str, float] | None = None,
    ) -> EvalMetrics:
        """Adds the sum, and the perplexity, which is infinite where exp(lm_loss) is beyond a float."""
        return cls(
            step=step,
            split=split,
            set=set,
            loss=sum(losses.values()),
            ppl=_perplexity(losses["lm_loss"]) if "lm_loss" in losses else None,
            losses=losses if len(losses) > 1 else {},
            metrics=metrics or {},
        )

    def scalars(self) -> dict[str, float]:
        """The values for monitors."""
        values = {"loss": self.loss, "ppl": self.ppl, **self.losses, **self.metrics}
        return {f"{self.split}/{self.set}/{key}": value for key, value in values.items() if value is not None}

    def record(self) -> dict[str, Any]:
        """The line of metrics.jsonl, before what is not finite is taken out."""
        record = _with_losses(asdict(self))
        return record if self.ppl is not None else {key: value for key, value in record.items() if key != "ppl"}


def _with_losses(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with each loss and each metric as a key of its own, where `losses` and `metrics` stand."""
    record: dict[str, Any] = {}
    for key, value in fields.items():
        record |= value if key in ("losses", "metrics") else {key: value}
    return record


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _shown(losses: Mapping[str, float]) -> str:
    """``loss  3.2145``: their sum, and where there are several, each of them after it."""
    parts = [f"loss {sum(losses.values()):7.4f}"]
    parts += [f"{name} {loss:7.4f}" for name, loss in losses.items() if len(losses) > 1]
    return " | ".join(parts)


def log_line(metrics: StepMetrics, train_iters: int) -> str:
    """One line for people, with its columns aligned from step to step. What does not exist here is left out.

    Args:
        metrics: the step.
        train_iters: steps in the whole run.
    """
    parts = [
        _progress(metrics.step, train_iters),
        _shown(metrics.losses),
        f"norm {metrics.grad_norm:6.3f}",
        f"lr {metrics.learning_rate:.2e}",
        f"{metrics.step_seconds:6.3f} s",
        f"{_short(metrics.tokens_per_second)} tok/s",
    ]
    if metrics.mfu is not None:
        parts += [f"{metrics.model_tflops_per_gpu:5.1f} TFLOP/s/GPU", f"mfu {metrics.mfu:.3f}"]
    if metrics.peak_memory_gib is not None:
        parts.append(f"mem {metrics.peak_memory_gib:5.1f} GiB")
    if metrics.loss_scale is not None:
        parts.append(f"scale {metrics.loss_scale:g}")
    if metrics.skipped:
        parts.append(f"skipped {metrics.skipped}")
    return " | ".join(parts)


def eval_log_line(metrics: EvalMetrics, train_iters: int) -> str:
    """One line for people about an evaluation; its loss stands below the training loss of `log_line`."""
    name = metrics.split if metrics.set == "all" else f"{metrics.split} {metrics.set}"
    parts = [_progress(metrics.step, train_iters), _shown(metrics.losses or {"loss": metrics.loss})]
    parts += [f"ppl {metrics.ppl:.2f}"] if metrics.ppl is not None else []
    parts += [f"{key} {value:.4f}" for key, value in metrics.metrics.items()]
    return " | ".join([*parts, name])


def _progress(step: int, train_iters: int) -> str:
    """``step  120/1000``, as wide at the first step as at the last."""
    return f"step {step:>{len(str(train_iters))}}/{train_iters}"


def _short(value: float) -> str:
    """A number in six columns with a thousands suffix: 9600 → ``9.60k``."""
    for suffix, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # From 999.95 of the next smaller unit on, rounding would print four digits.
        if value >= 0.99995 * unit:
            return f"{_three_digits(value / unit)}{suffix}".rjust(6)
    return _three_digits(value).rjust(6)


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


class MetricsWriter:
    """Appends records to DIR/metrics.jsonl, one JSON object a line, so that the file always holds one curve.

    Only one process may have a writer for a folder: rank 0. Each line is on its way to the disk when `write` returns.
    A value that is not finite becomes ``null``, because JSON has no word for it; the log line still names it.
    """

    def __init__(self, directory: Path, *, resume_step: int = 0) -> None:
        """Opens the file, which is made to end at `resume_step` first.

        Args:
            directory: the run's ``--save`` folder; made when missing.
            resume_step: the run goes on after this step, so that lines of later steps, which will be written again,
                are dropped. 0 starts a new curve; the file of an earlier run is kept under another name.

        Raises:
            TrainingError: the folder can't be written.
        """
        self._path = path = directory / METRICS_FILE
        with writing_into(path):
            directory.mkdir(parents=True, exist_ok=True)
            if not resume_step:
                set_aside(directory, (METRICS_FILE,))
            elif path.exists():
                _drop_later_lines(path, resume_step)
            self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: StepMetrics | EvalMetrics) -> None:
        """Appends one record and flushes it.

        Raises:
            TrainingError: the disk is full, for instance.
        """
        with writing_into(self._path):
            self._file.write(_to_json(metrics) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file; may be called twice.

        Raises:
            TrainingError: what `write` could not write can't be written now.
        """
        with writing_into(self._path):
            self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl, in the order of the file. Lines that a crash cut short are passed over.

    Raises:
        OSError: the file can't be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        return [record for line in file if (record := _parse(line)) is not None]


def _to_json(metrics: StepMetrics | EvalMetrics) -> str:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in metrics.record().items()
    }
    return json.dumps(finite, allow_nan=False)


def _parse(line: str) -> dict[str, Any] | None:
    """The record on a line, or None when it isn't one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _drop_later_lines(path: Path, last_step: int) -> None:
    """Leaves the whole lines up to `last_step`. A crash at any moment leaves the old file or the new one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = file.readlines()
    # A last line without its end is a crash's: the next record must not be glued to it.
    kept = [line for line in lines if line.endswith("\n") and (record := _parse(line)) and record["step"] <= last_step]
    if kept == lines:
        return
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    logger.info("%s: dropped %s after step %d", path, counted(len(lines) - len(kept), "line"), last_step)
