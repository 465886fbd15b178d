from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.tasks.glue.definitions import GLUE_TASKS
from megatron_ds.tasks.metrics import check_metrics_installed, compute_metrics, predictions_of
from megatron_ds.tasks.predictions import write_glue_predictions, write_race_predictions
from megatron_ds.tasks.race.encode import race_metrics


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_compute_metrics_of_classes_are_those_worked_by_hand() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 4 true negatives.
    predictions, labels = numbers(1, 1, 1, 0, 0, 0, 0, 0), numbers(1, 1, 0, 1, 0, 0, 0, 0)
    metrics = compute_metrics(("accuracy", "f1", "matthews"), predictions, labels)
    assert metrics == pytest.approx(
        {"accuracy": 6 / 8, "f1": 4 / 6, "matthews": (2 * 4 - 1) / math.sqrt(3 * 3 * 5 * 5)}
    )


def test_compute_metrics_of_scores_are_those_worked_by_hand() -> None:
    # Ranks 1, 2, 3, 4 and 1, 2, 4, 3: 1 - 6 x 2 / (4 x 15). Deviations -1.5 to 1.5 and -3, -2, 4, 1.
    metrics = compute_metrics(("pearson", "spearman"), numbers(1, 2, 3, 4), numbers(0, 1, 7, 4))
    assert metrics == pytest.approx({"pearson": 9 / math.sqrt(5 * 30), "spearman": 0.8})


def test_compute_metrics_that_are_not_defined_are_zero() -> None:
    names = ("matthews", "f1", "pearson", "spearman")
    assert compute_metrics(names, numbers(0, 0, 0), numbers(0, 0, 1)) == dict.fromkeys(names, 0.0)
    assert compute_metrics(("pearson",), numbers(2.5), numbers(1)) == {"pearson": 0.0}


@pytest.mark.parametrize(
    ("task", "metrics", "best"),
    [
        ("MNLI", ("accuracy",), "accuracy"),
        ("QQP", ("accuracy", "f1"), "accuracy"),
        ("MRPC", ("accuracy", "f1"), "accuracy"),
        ("CoLA", ("matthews",), "matthews"),
        ("STS-B", ("pearson", "spearman"), "pearson"),
    ],
)
def test_glue_task_has_its_official_metrics(task: str, metrics: tuple[str, ...], best: str) -> None:
    assert (GLUE_TASKS[task].metrics, GLUE_TASKS[task].best_by) == (metrics, best)


def test_predictions_of_outputs_are_classes_or_scores() -> None:
    assert predictions_of(np.array([[0.1, 0.2, -1], [3, 3, 0]], np.float32)).tolist() == [1, 0]
    assert predictions_of(np.array([[0.5], [6.0]], np.float32), is_regression=True).tolist() == [0.5, 6.0]


def test_race_metrics_are_over_all_and_each_level() -> None:
    levels = ["high", "middle", "high", None]
    metrics = race_metrics(numbers(0, 1, 2, 3), numbers(0, 1, 3, 3), levels)
    assert metrics == {"accuracy": 0.75, "accuracy_middle": 1.0, "accuracy_high": 0.5}
    assert race_metrics(numbers(0), numbers(1), ["high"]) == {"accuracy": 0.0, "accuracy_high": 0.0}


def test_check_metrics_installed_names_what_is_missing() -> None:
    assert check_metrics_installed() == []
    (problem,) = check_metrics_installed(lambda module: module != "sklearn")
    assert str(problem) == (
        "the metrics of finetuning tasks need scikit-learn and scipy, and scikit-learn is not installed\n"
        "  pip install 'megatron-ds[eval]'"
    )
    (problem,) = check_metrics_installed(lambda _: False)
    assert "and scikit-learn and scipy are not installed" in problem.message


def test_write_glue_predictions_has_labels_or_scores(tmp_path: Path) -> None:
    path = tmp_path / "new" / "MNLI-m.tsv"
    write_glue_predictions(path, GLUE_TASKS["MNLI"], ["0", "7"], numbers(2, 0))
    assert path.read_text() == "index\tprediction\n0\tneutral\n7\tcontradiction\n"
    write_glue_predictions(path, GLUE_TASKS["STS-B"], ["0", "1"], numbers(4.75, -0.1))
    assert path.read_text() == "index\tprediction\n0\t4.7500\n1\t-0.1000\n"


def test_write_race_predictions_has_a_line_for_each_question(tmp_path: Path) -> None:
    scores = np.array([[0, 0.5, 0, 0], [0, 0, 0, 2]], np.float32)
    path = tmp_path / "predictions.jsonl"
    write_race_predictions(path, ["a:0", "a:1"], scores, [1, 2])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"id": "a:0", "prediction": "B", "scores": [0, 0.5, 0, 0], "answer": "B"},
        {"id": "a:1", "prediction": "D", "scores": [0, 0, 0, 2], "answer": "C"},
    ]
    write_race_predictions(path, ["a:0", "a:1"], scores, None)
    assert "answer" not in path.read_text()
