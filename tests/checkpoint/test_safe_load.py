"""No file of a checkpoint runs anything, wherever it is opened."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.safe_load import Attributes, load_file
from megatron_ds.cli.checkpoint_tools import main
from megatron_ds.errors import CheckpointError
from tests.checkpoint.listing import list_anew
from tests.dist.pool import run_ranks


class _Touches:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.path}",)


class _Custom:
    def __init__(self) -> None:
        self.number = 7


@pytest.mark.parametrize("is_zip", [True, False])
def test_file_that_would_run_something_is_refused_by_name(tmp_path: Path, is_zip: bool) -> None:
    file = tmp_path / "evil.pt"
    torch.save({"a": torch.ones(3), "b": _Touches(tmp_path / "ran")}, file, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError) as caught:
        load_file(file)
    assert f"{file} is refused: it names posix.system" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_class_that_is_allowed_comes_back_as_its_attributes(tmp_path: Path) -> None:
    torch.save({"custom": _Custom()}, tmp_path / "file.pt")
    with pytest.raises(CheckpointError, match="_Custom"):
        load_file(tmp_path / "file.pt")
    loaded = load_file(tmp_path / "file.pt", {f"{__name__}._Custom": Attributes})["custom"]
    assert type(loaded) is Attributes
    assert vars(loaded) == {"number": 7}


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_and_plain_values_come_back(tmp_path: Path, is_zip: bool) -> None:
    content = {
        "tensors": OrderedDict(a=torch.arange(5.0)),
        "list": [1, 2.5, None, "text", (True,)],
        "shape": torch.Size((2,)),
    }
    torch.save(content, tmp_path / "file.pt", _use_new_zipfile_serialization=is_zip)
    loaded = load_file(tmp_path / "file.pt")
    assert torch.equal(loaded["tensors"]["a"], content["tensors"]["a"])
    assert loaded["list"] == content["list"]
    assert loaded["shape"] == content["shape"]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text"])
def test_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "file.pt"
    torch.save({"a": torch.ones(1000)}, file)
    whole = file.read_bytes()
    file.write_bytes({"missing": whole, "empty": b"", "cut": whole[:-10], "text": b"hello world"}[damage])
    if damage == "missing":
        file.unlink()
    with pytest.raises(CheckpointError) as caught:
        load_file(file)
    assert str(file) in str(caught.value)
    assert ("is missing" if damage == "missing" else "cut short or damaged") in str(caught.value)


def _save(case: Case, folder: Path) -> None:
    tiny = TinyRun(case)
    tiny.train_step(0)
    tiny.save(folder)


def _load(case: Case, folder: Path) -> str:
    try:
        TinyRun(case).load(folder)
    except CheckpointError as error:
        return str(error)
    return "loaded"


CASES = {
    "ZeRO-0": (Case(), "mp_rank_00_model_states.pt"),
    "ZeRO-1": (Case(zero=1), "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "ZeRO-3": (Case(zero=3), "zero_pp_rank_0_mp_rank_00_model_states.pt"),
    "pipeline": (Case(pp=2, zero=1), "layer_00-model_00-model_states.pt"),
}


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_with_such_a_file_is_refused_by_a_run_and_by_every_tool(name: str, tmp_path: Path) -> None:
    case, file = CASES[name]
    folder = tmp_path / "run"
    run_ranks(case.world_size, _save, case=case, folder=folder)
    assert set(run_ranks(case.world_size, _load, case=case, folder=folder)) == {"loaded"}
    path = open_checkpoint(folder).folder / file
    content = torch.load(path, weights_only=False)
    content["more"] = _Touches(tmp_path / "ran")
    torch.save(content, path)
    list_anew(path.parent, path)

    assert any("it names posix.system" in each for each in run_ranks(case.world_size, _load, case=case, folder=folder))
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        main(["reshard", "--input", str(folder), "--output", str(tmp_path / "new")])
    for command in ("merge", "to-fp32"):
        with suppress(CheckpointError):  # they don't open every file
            main([command, "--input", str(folder), "--output", str(tmp_path / f"{command}.safetensors")])
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--input", str(folder)])
    assert ended.value.code == 1
    assert not (tmp_path / "ran").exists()
