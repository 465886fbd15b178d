"""Where curves go besides the log and metrics.jsonl: TensorBoard and Weights & Biases, when asked for.

Importing this file imports neither, nor torch, so that `monitor_problems` can run before the start.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from megatron_ds.config.blocks import LoggingConfig
from megatron_ds.errors import ConfigError, Problem, Source


class Monitor(Protocol):
    """Something that draws curves."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds one point to each curve.

        Args:
            step: the optimizer step, from 1; never falls.
            scalars: curve name, with ``/`` between its parts, to value.
        """

    def close(self) -> None:
        """Writes out what is left. Nothing may be logged afterwards."""


class TensorBoardMonitor:
    """Writes TensorBoard event files."""

    def __init__(self, directory: str, *, resume_step: int = 0) -> None:
        """Starts an event file.

        Args:
            directory: folder of the event files, made when missing.
            resume_step: the run goes on after this step; TensorBoard hides what earlier files say of later steps.

        Raises:
            ConfigError: the tensorboard package isn't installed.
        """
        if not _installed("tensorboard"):
            raise ConfigError(_missing_tensorboard(directory))
        from torch.utils.tensorboard import SummaryWriter

        purge_step = resume_step + 1 if resume_step else None
        self._writer: Any = SummaryWriter(log_dir=directory, purge_step=purge_step)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds one point to each curve and hands it to the disk."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class WandbMonitor:
    """Logs to one Weights & Biases run. A resumed process opens a new run, whose curves begin where it went on."""

    def __init__(self, project: str, name: str | None, run_config: Mapping[str, Any]) -> None:
        """Opens the run.

        Args:
            project: Weights & Biases project.
            name: name of the run; a random one when None.
            run_config: the resolved configuration, shown beside the curves.

        Raises:
            ConfigError: the wandb package isn't installed, or Weights & Biases refused the run.
        """
        if not _installed("wandb"):
            raise ConfigError(_missing_wandb(project))
        import wandb

        try:
            self._run: Any = wandb.init(project=project, name=name, config=dict(run_config))
        except wandb.Error as error:
            raise ConfigError(
                Problem(
                    f"Weights & Biases did not start: {error}",
                    (Source("wandb_project", project, "the logging options"),),
                    "log in with `wandb login`, or set WANDB_MODE=offline and send the run later with `wandb sync`",
                )
            ) from error

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds one point to each curve."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Ends the run; waits until it is sent."""
        self._run.finish()


def build_monitors(
    logging: LoggingConfig, run_config: Mapping[str, Any], rank: int, *, resume_step: int = 0
) -> list[Monitor]:
    """The monitors that the options ask for; none on other ranks than 0, which has all the numbers.

    Args:
        logging: what is reported and where.
        run_config: the resolved configuration, for those that show it.
        rank: this process's rank.
        resume_step: the run goes on after this step; 0 at a fresh start.

    Raises:
        ConfigError: a package isn't installed (`monitor_problems` says so before the start) or refused the run.
    """
    monitors: list[Monitor] = []
    if rank != 0:
        return monitors
    if logging.tensorboard_dir is not None:
        monitors.append(TensorBoardMonitor(logging.tensorboard_dir, resume_step=resume_step))
    if logging.wandb_project is not None:
        monitors.append(WandbMonitor(logging.wandb_project, logging.wandb_exp_name, run_config))
    return monitors


def monitor_problems(logging: LoggingConfig, origins: Mapping[str, str] | None = None) -> list[Problem]:
    """What keeps the monitors that the options ask for from starting. Imports none of their packages.

    Args:
        logging: what is reported and where.
        origins: where options came from, by their dotted name (``logging.wandb_project``).
    """
    problems = []
    origins = origins or {}
    if logging.tensorboard_dir is not None and not _installed("tensorboard"):
        problems.append(_missing_tensorboard(logging.tensorboard_dir, origins.get("logging.tensorboard_dir")))
    if logging.wandb_project is not None and not _installed("wandb"):
        problems.append(_missing_wandb(logging.wandb_project, origins.get("logging.wandb_project")))
    return problems


def _installed(package: str) -> bool:
    """Whether `package` can be imported, found out without importing it.

    A folder without ``__init__.py`` doesn't count: wandb leaves a folder of its own name where a run was started.
    """
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _missing_tensorboard(directory: str, origin: str | None = None) -> Problem:
    return _missing("tensorboard", Source("tensorboard_dir", directory, origin or "--tensorboard-dir"))


def _missing_wandb(project: str, origin: str | None = None) -> Problem:
    return _missing("wandb", Source("wandb_project", project, origin or "--wandb-project"))


def _missing(package: str, asked_by: Source) -> Problem:
    return Problem(
        f"{asked_by.name} needs the package {package}, which is not installed",
        (asked_by,),
        f"pip install 'megatron-ds[{package}]', or leave the option out: metrics.jsonl has the same numbers",
    )
