"""Metrics of finetuning tasks, by scikit-learn and scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megatron_ds.errors import Problem

MetricName = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "scipy"}


def check_metrics_installed(is_installed: Callable[[str], bool] | None = None) -> list[Problem]:
    """What is missing for the metrics; to be reported before anything is started.

    Args:
        is_installed: whether a module can be imported; None looks.
    """
    look = is_installed or (lambda module: find_spec(module) is not None)
    missing = [package for module, package in _PACKAGES.items() if not look(module)]
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    return [
        Problem(
            f"the metrics of finetuning tasks need {' and '.join(_PACKAGES.values())}, and {' and '.join(missing)} "
            f"{are} not installed",
            advice="pip install 'megatron-ds[eval]'",
        )
    ]


def predictions_of(outputs: NDArray[np.float32], *, is_regression: bool = False) -> NDArray[np.float64]:
    """Predictions from a model's outputs.

    Args:
        outputs: scores of the classes or choices, [N, C]; or the score of a regression, [N, 1] or [N].
        is_regression: whether they are scores.

    Returns:
        The number of the highest class, the first of equal ones, or the score, float64 [N].
    """
    if is_regression:
        return outputs.reshape(-1).astype(np.float64)
    classes: NDArray[np.float64] = outputs.argmax(axis=1).astype(np.float64)
    return classes


def compute_metrics(
    names: Sequence[MetricName], predictions: NDArray[np.float64], labels: NDArray[np.float64]
) -> dict[str, float]:
    """Metrics by name, each from -1 or 0 to 1. F1 is that of class 1.

    A metric that is not defined, as a correlation with predictions that are all the same, is 0.

    Args:
        names: the metrics.
        predictions: of each example once, [N].
        labels: what is right, [N].
    """
    return {name: _METRICS[name](predictions, labels) for name in names}


def _accuracy(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels.astype(np.int64), predictions.astype(np.int64)))


def _f1(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels.astype(np.int64), predictions.astype(np.int64), zero_division=0.0))


def _matthews(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels.astype(np.int64), predictions.astype(np.int64)))


def _pearson(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from scipy.stats import pearsonr

    return float(pearsonr(predictions, labels).statistic) if _vary(predictions, labels) else 0.0


def _spearman(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(predictions, labels).statistic) if _vary(predictions, labels) else 0.0


def _vary(*series: NDArray[np.float64]) -> bool:
    return all(len(each) > 1 and bool((each != each[0]).any()) for each in series)


_METRICS: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
