"""The loss curve of a run as text: ``python -m megatron_ds.training.plot DIR/metrics.jsonl``."""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatron_ds.errors import DataError, MegatronDsError, Problem
from megatron_ds.training.metrics import METRICS_FILE, read_metrics

Points = Sequence[tuple[int, float]]

# A Braille character is a grid of 2 x 4 dots; each dot is one bit above U+2800, by [row][column].
_BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_VALIDATION = "●"
# The one that is drawn, the first that a run has.
_LOSSES = ("lm_loss", "classification_loss", "regression_loss")
_LEVEL = "╌"


def loss_curve(
    points: Points,
    validation: Points = (),
    *,
    levels: Mapping[str, float] | None = None,
    width: int = 72,
    height: int = 16,
) -> str:
    """Draws training loss as a line, and validation loss as dots on it.

    Where several points share a column, their mean is drawn. Points that are not finite are left out.

    Args:
        points: (step, training loss), in any order.
        validation: (step, validation loss).
        levels: values to compare with, by name: each is a dashed line and a line of the legend.
        width: columns of the whole picture, at least 32.
        height: rows of the plot itself, at least 4; the axis and the legend add two and one or more.

    Returns:
        Lines without a newline at the end.

    Raises:
        ValueError: there is nothing to draw.
    """
    points, validation = _finite(points), _finite(validation)
    levels = {name: value for name, value in (levels or {}).items() if math.isfinite(value)}
    if not points and not validation:
        raise ValueError("no finite loss to plot")
    losses = [loss for _, loss in (*points, *validation)]
    y_axis = _Axis.around([*losses, *levels.values()], most_ticks=max(4, height // 3))
    label_width = max(len(y_axis.label(tick)) for tick in y_axis.ticks) + 1
    columns, rows = max(width, 32) - label_width - 2, max(height, 4)
    x_axis = _step_axis([step for step, _ in (*points, *validation)], most_ticks=max(2, columns // 12))

    cells = _draw_line(points, x_axis, y_axis, columns, rows)
    for value in levels.values():
        row = _row(y_axis, value, rows)
        cells[row] = [_LEVEL if cell == " " else cell for cell in cells[row]]
    for step, loss in validation:
        cells[_row(y_axis, loss, rows)][round(x_axis.share(step) * (columns - 1))] = _VALIDATION

    labels = {_row(y_axis, tick, rows): y_axis.label(tick) for tick in y_axis.ticks}
    lines = [
        f"{labels.get(row, ''):>{label_width}} {'┤' if row in labels else '│'}{''.join(cells[row])}"
        for row in range(rows)
    ]
    lines += [f"{'':{label_width + 1}}{line}" for line in _bottom(x_axis, columns)]
    lines += [f"{'':{label_width + 2}}{line}" for line in _legend(points, validation, levels)]
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class _Axis:
    """A range of values with round numbers on it.

    Attributes:
        low, high: ends of the axis, `low` < `high`.
        tick_step: distance of the ticks: 1, 2 or 5 times a power of ten.
        ticks: the round numbers within the range, upwards.
    """

    low: float
    high: float
    tick_step: float
    ticks: tuple[float, ...]

    @classmethod
    def between(cls, low: float, high: float, most_ticks: int, least_step: float = 0.0) -> _Axis:
        """An axis with these ends, and at most `most_ticks` ticks (one more where both ends are ticks)."""
        power = 10.0 ** math.floor(math.log10((high - low) / most_ticks))
        candidates = (power * factor for factor in (1, 2, 5, 10))
        tick_step = max(least_step, next(step for step in candidates if (high - low) / step <= most_ticks * (1 + 1e-9)))
        first, last = math.ceil(low / tick_step - 1e-9), math.floor(high / tick_step + 1e-9)
        return cls(low, high, tick_step, tuple(number * tick_step for number in range(first, last + 1)))

    @classmethod
    def around(cls, values: Sequence[float], most_ticks: int) -> _Axis:
        """An axis from the least to the greatest value; a flat curve lies in its middle."""
        low, high = min(values), max(values)
        if high - low < 1e-3 * max(abs(low), abs(high), 1e-3):
            margin = 0.05 * max(abs(low), abs(high), 0.2)
            low, high = low - margin, high + margin
        return cls.between(low, high, most_ticks)

    def share(self, value: float) -> float:
        """Where `value` lies between the ends, 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """The number at a tick, with as many decimals as the distance of the ticks needs."""
        decimals = max(0, -math.floor(math.log10(self.tick_step) + 1e-9))
        return f"{tick:.{decimals}f}"


def _step_axis(steps: Sequence[int], most_ticks: int) -> _Axis:
    """From 0, unless the curve begins late, to the last step; ticks are whole steps."""
    first, last = min(steps), max(*steps, 1)
    low = 0 if first <= last / 4 or first == last else first
    return _Axis.between(low, last, most_ticks, least_step=1.0)


def _row(axis: _Axis, value: float, rows: int) -> int:
    """The row of characters that holds `value`, counted from the top."""
    return round((1 - axis.share(value)) * (rows - 1))


def _draw_line(points: Points, x_axis: _Axis, y_axis: _Axis, columns: int, rows: int) -> list[list[str]]:
    """Rows of characters, from the top, with the points joined by a line of Braille dots."""
    heights = _heights(points, x_axis, y_axis, columns * 2)
    bits = [[0] * columns for _ in range(rows)]
    for column, height in heights.items():
        # A dot column is filled halfway to its neighbours' heights, so that a steep line has no gaps.
        halfway = [(height + heights[side]) / 2 for side in (column - 1, column + 1) if side in heights]
        top, bottom = _dot_row(max(height, *halfway, 0), rows), _dot_row(min(height, *halfway, 1), rows)
        for dot in range(top, bottom + 1):
            bits[dot // 4][column // 2] |= _DOT_BITS[dot % 4][column % 2]
    return [[chr(_BRAILLE + cell) if cell else " " for cell in row] for row in bits]


def _dot_row(height: float, rows: int) -> int:
    """The row of dots, from the top, at a height of 0 to 1; the ends lie in the middle of the outermost characters."""
    return round((1 - height) * (rows - 1) * 4 + 1.5)


def _heights(points: Points, x_axis: _Axis, y_axis: _Axis, columns: int) -> dict[int, float]:
    """Height of the line, 0 to 1, in each column of dots from the first point to the last."""
    by_column: defaultdict[int, list[float]] = defaultdict(list)
    for step, loss in points:
        by_column[round(x_axis.share(step) * (columns - 1))].append(y_axis.share(loss))
    known = [(column, sum(shares) / len(shares)) for column, shares in sorted(by_column.items())]
    heights = dict(known)
    for (left, left_height), (right, right_height) in pairwise(known):
        for column in range(left + 1, right):
            heights[column] = left_height + (right_height - left_height) * (column - left) / (right - left)
    return heights


def _bottom(axis: _Axis, columns: int) -> tuple[str, str]:
    """The axis of steps and the numbers under it. They begin below the vertical axis, one column before the plot."""
    line = ["└", *"─" * columns]
    text = [" "] * (columns + 1)
    free_from = 0
    for tick in axis.ticks:
        column = 1 + round(axis.share(tick) * (columns - 1))
        line[column] = "┬"
        label = axis.label(tick)
        start = min(max(column - len(label) // 2, 0), len(text) - len(label))
        if start >= free_from:
            text[start : start + len(label)] = label
            free_from = start + len(label) + 2
    return "".join(line), "".join(text)


def _legend(points: Points, validation: Points, levels: Mapping[str, float]) -> list[str]:
    """What is drawn, with the last values."""
    parts = []
    if points:
        parts.append(f"⠒⠒ training loss {points[-1][1]:.4f} at step {points[-1][0]}")
    if validation:
        parts.append(f"{_VALIDATION} validation loss {validation[-1][1]:.4f}")
    return ["   ".join(parts), *(f"{_LEVEL}{_LEVEL} {name} {value:.4f}" for name, value in levels.items())]


def _finite(points: Points) -> list[tuple[int, float]]:
    return sorted((step, loss) for step, loss in points if math.isfinite(loss))


def losses_of(records: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """The training points and the validation points among the records of a metrics.jsonl.

    Of a validation split with several sets, the first one's points are taken; of several losses, the language model's.
    """
    steps = [record for record in records if "split" not in record]
    name = next((name for name in _LOSSES if any(record.get(name) is not None for record in steps)), _LOSSES[0])
    training = [(record["step"], record[name]) for record in steps if record.get(name) is not None]
    valid = [record for record in records if record.get("split") == "valid" and record.get("loss") is not None]
    # An evaluation with one loss has it under "loss" alone.
    validation = [
        (record["step"], record.get(name, record["loss"])) for record in valid if record["set"] == valid[0]["set"]
    ]
    return training, [(step, loss) for step, loss in validation if loss is not None]


def plot_file(path: Path, *, levels: Mapping[str, float] | None = None, width: int = 72, height: int = 16) -> str:
    """Draws the loss curve of a metrics.jsonl, or of the run's folder that holds one.

    Raises:
        DataError: the file can't be read or holds no loss.
    """
    path = path / METRICS_FILE if path.is_dir() else path
    try:
        training, validation = losses_of(read_metrics(path))
        return loss_curve(training, validation, levels=levels, width=width, height=height)
    except OSError as error:
        raise DataError(Problem(f"{path} can't be read: {error.strerror}")) from error
    except ValueError as error:
        raise DataError(Problem(f"{path}: {error}", advice="wait for the first logged step")) from error


def _level(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    if not name:
        raise ValueError("a level is NAME=VALUE")
    return name, float(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the loss curve of a run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m megatron_ds.training.plot", description=__doc__)
    parser.add_argument("metrics", type=Path, help="a run's metrics.jsonl, or the folder that holds it")
    parser.add_argument("--width", type=int, default=78, help="columns of the picture (default: %(default)s)")
    parser.add_argument("--height", type=int, default=16, help="rows of the plot (default: %(default)s)")
    parser.add_argument(
        "--level", type=_level, action="append", default=[], metavar="NAME=VALUE", help="a loss to compare with"
    )
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal whose encoding lacks the signs shows question marks rather than a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        print(plot_file(options.metrics, levels=dict(options.level), width=options.width, height=options.height))
    except MegatronDsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
