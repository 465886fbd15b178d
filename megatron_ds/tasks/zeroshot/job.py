"""What is evaluated, on which checkpoint, and how the model is spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from megatron_ds.config.blocks import RunConfig
from megatron_ds.generation.windows import Window
from megatron_ds.tasks.zeroshot.results import TaskResult
from megatron_ds.tokenizers import Tokenizer

if TYPE_CHECKING:
    from megatron_ds.generation.scoring import WindowScore
    from megatron_ds.tasks.task import Task, TaskSet

# From what is counted and how many there are, to what is called with each number of them that is done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


@dataclass(frozen=True)
class TextTask:
    """Tokens to score, and what is made of their scores.

    Attributes:
        name: of the task.
        examples: the windows of each example.
        summarize: from the score of each example, all of its windows together, to the numbers.
        notes: what to tell before the start.
    """

    name: str
    examples: tuple[tuple[Window, ...], ...]
    summarize: Callable[[Sequence[WindowScore]], TaskResult]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValidationTask:
    """The losses of a run's validation sets.

    Attributes:
        run: the options that its samples depend on: model, data and seed.
        num_samples: of each set, the first ones.
    """

    run: RunConfig
    num_samples: int


@dataclass(frozen=True)
class HarnessTask:
    """Tasks of lm-evaluation-harness.

    Attributes:
        names: of the tasks, groups or tags.
        include_path: a folder with tasks of one's own as YAML files.
        num_fewshot: solved examples before each question; None for what the task says.
        limit: examples of each task, the first ones; None for all.
        tokenizer: the model's.
        eod_id: what stands before a text without a context; None where there is no such token.
        length: tokens that the model sees at once.
    """

    names: tuple[str, ...]
    include_path: Path | None
    num_fewshot: int | None
    limit: int | None
    tokenizer: Tokenizer
    eod_id: int | None
    length: int


@dataclass(frozen=True)
class FinetunedTask:
    """The task that a model was finetuned on.

    Attributes:
        task: the task.
        sets: of examples with labels, each judged by itself.
    """

    task: Task
    sets: tuple[TaskSet, ...]


EvaluationTask: TypeAlias = TextTask | ValidationTask | HarnessTask | FinetunedTask


@dataclass(frozen=True)
class EvaluationJob:
    """Everything that a process needs to know to do its part.

    Attributes:
        checkpoint: its own folder.
        precision: of weights and computing: ``fp32``, ``bf16`` or ``fp16``.
        tp_size: tensor-parallel size.
        pp_size: pipeline stages.
        batch_size: texts or samples that one replica of the model runs at the same time.
        task: what is evaluated.
    """

    checkpoint: Path
    precision: str
    tp_size: int
    pp_size: int
    batch_size: int
    task: EvaluationTask
