"""Writes a model's predictions: GLUE's TSV for its server, JSON lines for RACE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_ds.checkpoint.hashed_file import replace_text
from megatron_ds.tasks.glue.definitions import GlueTask

CHOICES = "ABCD"


def write_glue_predictions(path: Path, task: GlueTask, uids: Sequence[str], predictions: NDArray[np.float64]) -> None:
    """Writes ``index`` and ``prediction``, tab-separated, with that header, as GLUE's server takes it.

    Args:
        path: the file, which is replaced once it is complete.
        task: the task; a class is written as its label.
        uids: what each example is called.
        predictions: class or score of each, [N]. Scores are written as they are, also beyond 0 and 5.
    """
    values = predictions.tolist()
    texts = [f"{value:.4f}" if task.is_regression else task.labels[int(value)] for value in values]
    rows = (f"{uid}\t{text}" for uid, text in zip(uids, texts, strict=True))
    _write_lines(path, ["index\tprediction", *rows])


def write_race_predictions(
    path: Path, uids: Sequence[str], scores: NDArray[np.float32], labels: Sequence[float] | None
) -> None:
    """Writes one JSON object a line: ``id``, ``prediction`` (A to D), ``scores`` of all four, and ``answer``.

    Args:
        path: the file, which is replaced once it is complete.
        uids: what each question is called.
        scores: the model's outputs, [N, 4].
        labels: the right choices, or None: there is no ``answer``.
    """
    lines = []
    for number, (uid, row) in enumerate(zip(uids, scores, strict=True)):
        line = {"id": uid, "prediction": CHOICES[int(row.argmax())], "scores": [float(score) for score in row]}
        if labels is not None:
            line["answer"] = CHOICES[int(labels[number])]
        lines.append(json.dumps(line, ensure_ascii=False))
    _write_lines(path, lines)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(f"{line}\n" for line in lines))
