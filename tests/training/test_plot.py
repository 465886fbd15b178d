"""The terminal plot of the loss curve."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_ds.training.metrics import EvalMetrics, MetricsWriter
from megatron_ds.training.plot import loss_curve, losses_of, main

FALLING = [(step, 3 + 7 * math.exp(-step / 50)) for step in range(1, 301)]

SMALL_PLOT = """\
 4.0 ┤⠤⣄⡀
     │  ⠉⠓⠦⢤⣀
 3.5 ┤      ⠈⠙⠲⢤⣀
 3.0 ┤╌╌╌╌╌╌╌╌╌╌⠈⠙⠲⠤⣄⡀╌╌╌╌╌╌╌╌╌╌
 2.5 ┤               ⠉⠓⠦⣄⡀
     │                   ⠉⠓⠦⢤⣀
 2.0 ┤                       ⠈⠙●
     └┬───────────┬────────────┬
      0           5           10
      ⠒⠒ training loss 2.0000 at step 10   ● validation loss 2.0000
      ╌╌ target 3.0000"""


def plot_rows(plot: str) -> list[str]:
    """The rows right of the vertical axis."""
    return [line.split("│")[-1].split("┤")[-1] for line in plot.splitlines() if "│" in line or "┤" in line]


def test_loss_curve_small_plot_is_the_expected_picture() -> None:
    plot = loss_curve([(0, 4.0), (10, 2.0)], [(10, 2.0)], levels={"target": 3.0}, width=32, height=7)
    assert plot == SMALL_PLOT


@pytest.mark.parametrize(("width", "height"), [(72, 16), (80, 20), (40, 8), (132, 40)])
def test_loss_curve_fits_the_given_size(width: int, height: int) -> None:
    plot = loss_curve(FALLING, [(100, 4.0), (300, 3.2)], levels={"entropy": 5.0}, width=width, height=height)
    plot_lines = plot.splitlines()[: height + 2]
    assert len(plot_rows(plot)) == height
    assert max(map(len, plot_lines)) <= width
    assert sum(row.count("●") for row in plot_rows(plot)) == 2


def test_loss_curve_falling_loss_falls_from_the_top_left_to_the_bottom_right() -> None:
    rows = plot_rows(loss_curve(FALLING))
    assert rows[0][0] != " "
    assert len(rows[-1]) == max(map(len, rows))


def test_loss_curve_steep_line_has_no_gap() -> None:
    rows = plot_rows(loss_curve([(0, 10.0), (10, 0.0), (1000, 0.0)]))
    assert all(row.strip() for row in rows)


def test_loss_curve_legend_has_the_last_values() -> None:
    plot = loss_curve([(10, 3.0), (20, 2.5)], [(20, 2.75)], levels={"unigram entropy": 5.25})
    assert "training loss 2.5000 at step 20" in plot
    assert "● validation loss 2.7500" in plot
    assert "╌╌ unigram entropy 5.2500" in plot


def test_loss_curve_late_start_begins_its_axis_there() -> None:
    steps = loss_curve([(step, 2.0 + step / 1e5) for step in range(5000, 6001, 10)]).splitlines()[-2]
    assert steps.split()[0] == "5000"
    assert steps.split()[-1] == "6000"


@pytest.mark.parametrize(
    "points", [[(1, 3.0)], [(0, 0.0)], [(1, 2.0), (2, 2.0)], [(1, 1e-8), (2, 2e-8)], [(1, 1e8), (10**9, 2.0)]]
)
def test_loss_curve_odd_ranges_are_drawn(points: list[tuple[int, float]]) -> None:
    assert any(row.strip() for row in plot_rows(loss_curve(points)))


def test_loss_curve_leaves_out_values_that_are_not_finite() -> None:
    plot = loss_curve([(1, math.nan), (2, 3.0), (3, math.inf), (4, 2.0)], [(4, math.nan)])
    assert plot == loss_curve([(2, 3.0), (4, 2.0)])
    with pytest.raises(ValueError, match="no finite loss"):
        loss_curve([(1, math.nan)])


def test_losses_of_takes_training_and_the_first_validation_set() -> None:
    records = [
        {"step": 1, "lm_loss": 3.0},
        {"step": 2, "lm_loss": None},
        {"step": 2, "split": "valid", "set": "all", "loss": 2.9, "ppl": 18.2},
        {"step": 2, "split": "valid", "set": "code", "loss": 1.9, "ppl": 6.7},
        {"step": 2, "split": "test", "set": "all", "loss": 2.8, "ppl": 16.4},
    ]
    assert losses_of(records) == ([(1, 3.0)], [(2, 2.9)])


def test_main_prints_the_curve_of_a_folder_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "lm_loss": x}) + "\n" for s, x in FALLING))
    with MetricsWriter(tmp_path, resume_step=300) as writer:
        writer.write(EvalMetrics.from_losses(step=300, split="valid", losses={"lm_loss": 3.5}))
    assert main([str(tmp_path), "--level", "0.85 x entropy=4.5"]) == 0
    of_folder = capsys.readouterr().out
    assert "╌╌ 0.85 x entropy 4.5000" in of_folder
    assert "● validation loss 3.5000" in of_folder
    assert main([str(tmp_path / "metrics.jsonl"), "--level", "0.85 x entropy=4.5"]) == 0
    assert capsys.readouterr().out == of_folder


def test_main_missing_or_empty_file_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 3
    assert "nowhere can't be read: No such file or directory" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").touch()
    assert main([str(tmp_path)]) == 3
    assert "no finite loss" in capsys.readouterr().err


def test_main_without_unicode_prints_question_marks_and_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lm_loss": 3.0}\n{"step": 2, "lm_loss": 2.0}\n')
    code = (
        "import sys; from megatron_ds.training.plot import main; "
        f"sys.exit(main([{str(tmp_path)!r}]) or ('torch' in sys.modules))"
    )
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "training loss 2.0000" in done.stdout
