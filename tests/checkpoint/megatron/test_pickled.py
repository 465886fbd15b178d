"""What stands in Megatron's files beside weights is read without running it, and what is not on the list is refused."""

from __future__ import annotations

import enum
import os
import random
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_ds.checkpoint.megatron import import_megatron
from megatron_ds.checkpoint.megatron.pickled import ALLOWED, EnumMember
from megatron_ds.checkpoint.safe_load import load_file
from megatron_ds.errors import CheckpointError
from tests.checkpoint.megatron.reference import Gpt
from tests.checkpoint.megatron.writers import class_of, write_bloom, write_classic


class Command:
    """Runs a command when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_import_of_a_file_with_a_command_refuses_it_and_runs_nothing(tmp_path: Path, zipped: bool) -> None:
    witness = tmp_path / "witness"
    folder = write_classic(tmp_path / "in", Gpt(), 1, 1, zipped=zipped, hook=Command(witness))
    with pytest.raises(CheckpointError, match=r"posix\.system") as error:
        import_megatron(folder)
    path = next(folder.glob("iter_*/*/*.pt"))
    assert str(path) in str(error.value)
    assert not witness.exists()
    torch.load(path, weights_only=False)
    assert witness.exists()  # the file does what it is refused for


def test_import_of_a_layer_file_with_a_command_refuses_it(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    folder = write_bloom(tmp_path / "in", Gpt(), 1)
    path = sorted(folder.glob("global_step7/layer_*"))[2]
    torch.save({**torch.load(path), "extra": Command(witness)}, path)
    with pytest.raises(CheckpointError, match=rf"{path.name}.*posix\.system"):
        import_megatron(folder)
    assert not witness.exists()


def test_import_of_a_file_with_an_unknown_class_names_file_and_class(tmp_path: Path) -> None:
    class Tokenizer:
        pass

    with class_of("megatron.tokenizer.tokenizer._GPT2BPETokenizer", Tokenizer):
        folder = write_classic(tmp_path, Gpt(), 1, 1, tokenizer=Tokenizer())
    with pytest.raises(CheckpointError, match=r"model_optim_rng\.pt.*_GPT2BPETokenizer"):
        import_megatron(folder)


def test_load_file_reads_what_megatron_saves_beside_weights(tmp_path: Path) -> None:
    class AttnBackend(enum.Enum):
        flash = 1

    class ModelType(enum.Enum):
        """Pickled by name, as some versions of Python do it."""

        encoder_or_decoder = 1

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            return getattr, (ModelType, self.name)

    with (
        class_of("megatron.core.transformer.enums.AttnBackend", AttnBackend),
        class_of("megatron.core.enums.ModelType", ModelType),
    ):
        arguments = Namespace(
            attention_backend=AttnBackend.flash,
            model_type=ModelType.encoder_or_decoder,
            exit_signal=signal.SIGTERM,
            params_dtype=torch.bfloat16,
            samples=np.int64(7),
            save=Path("checkpoints"),
        )
        states = [{"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}]
        torch.save({"args": arguments, "rng_state": states}, tmp_path / "file.pt")
    loaded = load_file(tmp_path / "file.pt", ALLOWED)["args"]
    assert (type(loaded.attention_backend), loaded.attention_backend.value) == (EnumMember, 1)
    assert loaded.model_type.value == "encoder_or_decoder"
    assert loaded.params_dtype is torch.bfloat16
