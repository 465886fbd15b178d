"""TensorBoard events read back, wandb through a stand-in module, and missing packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_ds.config.blocks import LoggingConfig
from megatron_ds.errors import ConfigError
from megatron_ds.training.monitors import TensorBoardMonitor, WandbMonitor, build_monitors, monitor_problems

STAND_IN = """
calls = []

class Error(Exception):
    pass

class Run:
    def log(self, scalars, step):
        calls.append((step, scalars))

    def finish(self):
        calls.append("finish")

def init(project, name, config):
    if project == "refused":
        raise Error("api_key not configured (no-tty)")
    calls.append((project, name, config))
    return Run()
"""


@pytest.fixture
def wandb_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Makes `import wandb` find a module that writes down what it is told."""
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    module = importlib.import_module("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module.calls  # type: ignore[no-any-return]


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Makes `package` look as if it were not installed."""
    monkeypatch.setitem(sys.modules, package, None)


def read_events(directory: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_events_read_back_as_logged(tmp_path: Path) -> None:
    (monitor,) = build_monitors(LoggingConfig(tensorboard_dir=str(tmp_path / "events")), {}, rank=0)
    assert isinstance(monitor, TensorBoardMonitor)
    monitor.log(1, {"train/lm_loss": 4.5, "train/mfu": 0.25})
    monitor.log(2, {"train/lm_loss": 4.25})
    monitor.close()
    assert read_events(tmp_path / "events", "train/lm_loss") == [(1, 4.5), (2, 4.25)]
    assert read_events(tmp_path / "events", "train/mfu") == [(1, 0.25)]


def test_tensorboard_resume_hides_the_steps_that_run_again(tmp_path: Path) -> None:
    first = TensorBoardMonitor(str(tmp_path))
    for step in (1, 2, 3, 4):
        first.log(step, {"loss": float(step)})
    first.close()
    second = TensorBoardMonitor(str(tmp_path), resume_step=2)
    second.log(3, {"loss": 30.0})
    second.close()
    assert read_events(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_wandb_gets_the_project_the_config_and_every_point(wandb_stand_in: list[object]) -> None:
    logging = LoggingConfig(wandb_project="gpt", wandb_exp_name="first")
    (monitor,) = build_monitors(logging, {"model": {"num_layers": 2}}, rank=0)
    assert isinstance(monitor, WandbMonitor)
    monitor.log(1, {"train/lm_loss": 4.5})
    monitor.close()
    assert wandb_stand_in == [
        ("gpt", "first", {"model": {"num_layers": 2}}),
        (1, {"train/lm_loss": 4.5}),
        "finish",
    ]


def test_wandb_refusing_the_run_is_one_clear_error(wandb_stand_in: list[object]) -> None:
    with pytest.raises(ConfigError, match="api_key not configured") as error:
        WandbMonitor("refused", None, {})
    assert "WANDB_MODE=offline" in str(error.value)


def test_build_monitors_other_ranks_have_none(tmp_path: Path) -> None:
    logging = LoggingConfig(tensorboard_dir=str(tmp_path / "events"), wandb_project="gpt")
    assert build_monitors(logging, {}, rank=1) == []
    assert not (tmp_path / "events").exists()


def test_build_monitors_nothing_asked_for_gives_none() -> None:
    assert build_monitors(LoggingConfig(), {}, rank=0) == []


def test_missing_packages_are_reported_together_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "tensorboard")
    hide(monkeypatch, "wandb")
    logging = LoggingConfig(tensorboard_dir="events", wandb_project="gpt")
    problems = monitor_problems(logging, {"logging.wandb_project": "run.json: megatron_ds.logging.wandb_project"})
    assert [problem.sources[0].origin for problem in problems] == [
        "--tensorboard-dir",
        "run.json: megatron_ds.logging.wandb_project",
    ]
    assert "pip install 'megatron-ds[tensorboard]'" in problems[0].advice
    assert "pip install 'megatron-ds[wandb]'" in problems[1].advice
    with pytest.raises(ConfigError, match=r"megatron-ds\[tensorboard\]"):
        build_monitors(logging, {}, rank=0)


def test_monitor_problems_nothing_asked_for_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "tensorboard")
    hide(monkeypatch, "wandb")
    assert monitor_problems(LoggingConfig()) == []


def test_monitor_problems_a_folder_named_wandb_is_no_package(tmp_path: Path) -> None:
    # What an earlier run leaves in its working directory. The path holds nothing else, so that it doesn't matter
    # whether the real package is installed here.
    code = (
        "import sys; from megatron_ds.training.monitors import _installed; "
        f"sys.path[:] = [{str(tmp_path)!r}]; sys.exit(_installed('wandb'))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_monitor_problems_import_no_monitor_and_no_torch() -> None:
    code = (
        "import sys; from megatron_ds.config.blocks import LoggingConfig; "
        "from megatron_ds.training.monitors import monitor_problems; "
        "monitor_problems(LoggingConfig(tensorboard_dir='events', wandb_project='gpt')); "
        "sys.exit(bool({'torch', 'tensorboard', 'wandb'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
