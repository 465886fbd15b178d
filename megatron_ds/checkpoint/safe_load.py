"""Reading files that ``torch.save`` wrote, without running what they say.

A pickle can call any function. Here a file may only name the classes that a checkpoint needs, and none of them is the
real one: a class that DeepSpeed or Megatron pickled comes back as a bag of attributes, so neither has to be installed.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import torch

from megatron_ds.errors import CheckpointError, Problem


class Attributes:
    """Stands for an object of a class whose code is not wanted: what was pickled of it is in its attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


# What the files of DeepSpeed 0.19.8 name besides tensors and plain containers.
DEEPSPEED_CLASSES: Mapping[str, type] = MappingProxyType(
    dict.fromkeys(
        (
            "deepspeed.runtime.fp16.loss_scaler.LossScaler",
            "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
            "deepspeed.runtime.zero.config.ZeroStageEnum",
            "deepspeed.utils.tensor_fragment.fragment_address",
        ),
        Attributes,
    )
)


# PyTorch keeps the classes that it allows in one list for all threads.
_ONE_AT_A_TIME = Lock()


def load_file(path: Path, allowed: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Loads what ``torch.save`` wrote. Tensors of zip files are mapped: they take memory when they are read.

    Args:
        path: the file.
        allowed: full name of a class that the file may hold → the class to make instead of it.

    Returns:
        The content, tensors on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, or names a class or function that is not allowed.
    """
    classes = [(replacement, name) for name, replacement in allowed.items()]
    try:
        with _ONE_AT_A_TIME, torch.serialization.safe_globals(classes):  # type: ignore[arg-type]
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            Problem(
                f"{path} is refused: {_reason(error)}",
                advice="a file that holds more than tensors and plain values can run code when it is read; load only "
                "checkpoints that you trust, and convert this one with the program that wrote it",
            )
        ) from error
    except FileNotFoundError as error:
        advice = "copy the whole folder of the checkpoint"
        raise CheckpointError(Problem(f"{path} is missing", advice=advice)) from error
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            Problem(f"{path} can't be read: {type(error).__name__}: {reason}", advice="it is cut short or damaged")
        ) from error


def _reason(error: pickle.UnpicklingError) -> str:
    """What the file wanted, out of PyTorch's long message."""
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    return (
        f"it names {named[1]}, which is no part of a checkpoint"
        if named
        else "it is not made of tensors and plain values"
    )
