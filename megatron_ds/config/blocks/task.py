"""Options of finetuning on a task."""

from __future__ import annotations

from typing import Literal

from megatron_ds.config.option import OptionBlock, option

GLUE_TASKS = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "MRPC", "RTE", "STS-B", "WNLI")


class TaskConfig(OptionBlock):
    """Finetuning with finetune.py: the task, its files, and the model that it begins with."""

    task: Literal["MNLI", "QQP", "QNLI", "SST-2", "CoLA", "MRPC", "RTE", "STS-B", "WNLI", "RACE", "SFT"] | None = (
        option(
            None,
            "What finetune.py trains: a task of GLUE (bert), `RACE` (bert), or `SFT`, instruction tuning on prompts "
            "and responses (gpt).",
            older_values={"SST2": "SST-2", "STSB": "STS-B", "COLA": "CoLA", "STS": "STS-B"},
        )
    )
    train_data: list[str] = option([], "Training examples of the task: files, or folders (RACE).")
    valid_data: list[str] = option(
        [], "Validation examples; each file or folder is evaluated by itself, at the end of every epoch."
    )
    test_data: list[str] = option([], "Test examples, with or without labels; their predictions are written.")
    epochs: int | None = option(
        None, "Passes over the training examples; 3 when neither this nor --train-iters is given.", ge=0, le=10**6
    )
    pretrained_checkpoint: str | None = option(
        None,
        "Model to begin with: a checkpoint of ours at any layout, or a folder of Hugging Face or Megatron-LM. Its body "
        "is loaded, and the task's head is new.",
    )
    packing: bool = option(
        True, "SFT: puts several short examples into one sequence, whose tokens see their own example only."
    )

    @property
    def sequences_per_sample(self) -> int:
        """Sequences that the model reads for one sample: RACE's has one for each of its four choices."""
        return 4 if self.task == "RACE" else 1
