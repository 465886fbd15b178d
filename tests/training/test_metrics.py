"""Records, log lines and metrics.jsonl."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_ds.errors import TrainingError
from megatron_ds.training.metrics import (
    METRICS_FILE,
    EvalMetrics,
    MetricsWriter,
    StepMetrics,
    eval_log_line,
    log_line,
    read_metrics,
)

GPU_STEP = StepMetrics(
    step=120,
    consumed_samples=960,
    consumed_tokens=983040,
    losses={"lm_loss": 3.21449},
    grad_norm=0.8123,
    learning_rate=2e-4,
    loss_scale=None,
    skipped=0,
    step_seconds=0.2134,
    tokens_per_second=38388.0,
    tokens_per_second_per_gpu=9597.0,
    model_tflops_per_gpu=412.34,
    mfu=0.41693,
    peak_memory_gib=11.24,
)
CPU_STEP = replace(GPU_STEP, mfu=None, peak_memory_gib=None)


def step_lines(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def write_steps(directory: Path, steps: range, resume_step: int = 0) -> Path:
    with MetricsWriter(directory, resume_step=resume_step) as writer:
        for step in steps:
            writer.write(replace(CPU_STEP, step=step))
    return directory / "metrics.jsonl"


def test_metrics_have_exactly_the_documented_keys() -> None:
    step_keys = (
        "step consumed_samples consumed_tokens lm_loss grad_norm learning_rate loss_scale skipped step_seconds "
        "tokens_per_second tokens_per_second_per_gpu model_tflops_per_gpu mfu peak_memory_gib"
    )
    assert list(GPU_STEP.record()) == step_keys.split()
    evaluation = EvalMetrics.from_losses(step=1, split="valid", losses={"lm_loss": 2.0})
    assert list(evaluation.record()) == ["step", "split", "set", "loss", "ppl"]


def test_metrics_of_two_losses_name_both_and_show_their_sum() -> None:
    losses = {"lm_loss": 3.0, "sop_loss": 0.5}
    step = replace(CPU_STEP, losses=losses)
    assert [key for key in step.record() if key.endswith("loss")] == ["lm_loss", "sop_loss"]
    assert "| loss  3.5000 | lm_loss  3.0000 | sop_loss  0.5000 | norm" in log_line(step, 1000)
    assert step.scalars()["train/sop_loss"] == 0.5
    evaluation = EvalMetrics.from_losses(step=1, split="valid", losses=losses)
    assert evaluation.record() == {
        **{"step": 1, "split": "valid", "set": "all", "loss": 3.5, "ppl": math.exp(3.0)},
        **losses,
    }
    assert "| loss  3.5000 | lm_loss  3.0000 | sop_loss  0.5000 | ppl 20.09 | valid" in eval_log_line(evaluation, 1)


def test_log_line_on_gpu_names_everything_with_units() -> None:
    assert log_line(GPU_STEP, 1000) == (
        "step  120/1000 | loss  3.2145 | norm  0.812 | lr 2.00e-04 |  0.213 s |  38.4k tok/s"
        " | 412.3 TFLOP/s/GPU | mfu 0.417 | mem  11.2 GiB"
    )


def test_log_line_on_cpu_leaves_out_what_does_not_exist() -> None:
    line = log_line(CPU_STEP, 1000)
    assert line == "step  120/1000 | loss  3.2145 | norm  0.812 | lr 2.00e-04 |  0.213 s |  38.4k tok/s"


def test_log_line_with_fp16_shows_the_scale_and_skipped_steps() -> None:
    line = log_line(replace(CPU_STEP, loss_scale=65536.0, skipped=2, grad_norm=math.inf), 1000)
    assert "norm    inf" in line
    assert line.endswith("| scale 65536 | skipped 2")


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (0.5, "  0.50"),
        (42.0, "  42.0"),
        (999.94, "  1000"),
        (999.96, " 1.00k"),
        (9600.0, " 9.60k"),
        (99960.0, "  100k"),
        (999_960.0, " 1.00M"),
        (1_234_000.0, " 1.23M"),
    ],
)
def test_log_line_rates_are_six_columns_wide(rate: float, shown: str) -> None:
    assert f"| {shown} tok/s" in log_line(replace(CPU_STEP, tokens_per_second=rate), 10)


def test_log_lines_of_a_run_are_aligned() -> None:
    early = replace(
        GPU_STEP, step=1, losses={"lm_loss": 10.9251}, grad_norm=12.5, tokens_per_second=950.0, step_seconds=12.0
    )
    assert len(log_line(early, 1000)) == len(log_line(GPU_STEP, 1000))


def test_eval_log_line_puts_its_loss_below_the_training_loss() -> None:
    line = eval_log_line(EvalMetrics.from_losses(step=100, split="valid", losses={"lm_loss": 2.0}), 1000)
    assert line == "step  100/1000 | loss  2.0000 | ppl 7.39 | valid"
    assert line.index("loss") == log_line(GPU_STEP, 1000).index("loss")


def test_eval_metrics_of_a_huge_loss_have_infinite_perplexity() -> None:
    assert EvalMetrics.from_losses(step=1, split="valid", losses={"lm_loss": 1000.0}).ppl == math.inf


def test_scalars_leave_out_none_and_the_step() -> None:
    scalars = CPU_STEP.scalars()
    assert scalars["train/lm_loss"] == CPU_STEP.losses["lm_loss"]
    assert not {"train/step", "train/mfu", "train/loss_scale"} & set(scalars)
    assert EvalMetrics.from_losses(step=1, split="test", set="books", losses={"lm_loss": 0.0}).scalars() == {
        "test/books/loss": 0.0,
        "test/books/ppl": 1.0,
    }


def test_writer_line_is_readable_before_close(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "new" / "folder")
    writer.write(GPU_STEP)
    assert read_metrics(tmp_path / "new" / "folder" / "metrics.jsonl")[0]["mfu"] == GPU_STEP.mfu
    writer.close()


def test_writer_not_finite_values_become_null_in_valid_json(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(replace(GPU_STEP, losses={"lm_loss": math.nan}, grad_norm=math.inf))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    record = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert record["lm_loss"] is None
    assert record["grad_norm"] is None
    assert record["step"] == 120


def test_writer_resume_drops_later_lines_and_goes_on(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 9))
    path = write_steps(tmp_path, range(6, 11), resume_step=5)
    assert step_lines(path) == list(range(1, 11))
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_writer_resume_keeps_the_evaluation_of_the_saved_step(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step in (5, 6):
            writer.write(EvalMetrics.from_losses(step=step, split="valid", losses={"lm_loss": 1.0}))
    path = write_steps(tmp_path, range(0), resume_step=5)
    assert step_lines(path) == [5]


def test_writer_resume_after_a_crash_drops_the_torn_line(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(1, 4))
    path.write_bytes(path.read_bytes()[:-20])
    write_steps(tmp_path, range(4, 5), resume_step=3)
    assert step_lines(path) == [1, 2, 4]


def test_writer_resume_with_nothing_to_drop_leaves_the_file_alone(tmp_path: Path) -> None:
    path = write_steps(tmp_path, range(1, 4))
    before = path.stat().st_ino
    write_steps(tmp_path, range(4, 5), resume_step=3)
    assert path.stat().st_ino == before
    assert step_lines(path) == [1, 2, 3, 4]


def test_writer_fresh_start_keeps_the_curves_of_earlier_runs(tmp_path: Path) -> None:
    for last in (2, 3, 4):
        write_steps(tmp_path, range(1, last))
    assert step_lines(tmp_path / "metrics.1.jsonl") == [1]
    assert step_lines(tmp_path / "metrics.2.jsonl") == [1, 2]
    assert step_lines(tmp_path / "metrics.jsonl") == [1, 2, 3]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_writer_on_a_full_disk_ends_the_run_with_the_file_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught, MetricsWriter(tmp_path) as writer:
        writer._file.close()
        writer._file = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115 - the writer closes it
        writer.write(CPU_STEP)
    assert f"{tmp_path / METRICS_FILE} can't be written: No space left on device" in str(caught.value)
