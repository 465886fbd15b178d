"""What offload needs of a machine is looked at before anything is started."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from megatron_ds.cli import offload
from megatron_ds.cli.compile_locks import extensions_folder
from megatron_ds.cli.offload import machine_problems
from megatron_ds.cli.preflight import preflight
from megatron_ds.errors import ConfigError
from tests.config.helpers import write_json
from tests.launch.helpers import clean_environment, tiny_run, write_corpus


def _config(optimizer: str, param: str, folder: Path) -> dict[str, Any]:
    blocks = {"offload_optimizer": optimizer, "offload_param": param}
    zero = {name: {"device": device, "nvme_path": str(folder)} for name, device in blocks.items()}
    return {"zero_optimization": {"stage": 3, **zero}}


def _compiler(folder: Path, exit_code: int, says: str = "") -> str:
    """A compiler that does nothing but end."""
    program = folder / "compiler"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that is all of PATH, with a ninja in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ninja = folder / "ninja"
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def test_no_offload_needs_nothing() -> None:
    assert machine_problems({"zero_optimization": {"stage": 1}}, {"CXX": "no-such-compiler"}) == []


@pytest.mark.parametrize(("optimizer", "param"), [("nvme", "none"), ("none", "nvme"), ("nvme", "nvme")])
def test_disks_with_a_folder_and_libaio_are_fine(tools: Path, tmp_path: Path, optimizer: str, param: str) -> None:
    assert machine_problems(_config(optimizer, param, tmp_path), {"CXX": _compiler(tools, 0)}) == []


def test_folder_that_is_not_there_is_named(tools: Path, tmp_path: Path) -> None:
    config = _config("nvme", "none", tmp_path / "gone")
    (problem,) = machine_problems(config, {"CXX": _compiler(tools, 0)})
    assert problem.message == f"offload_optimizer: there is no folder {tmp_path / 'gone'}"


def test_folder_that_can_not_be_written_to_is_named(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload.os, "access", lambda path, _: Path(path) != tmp_path)  # root may write
    (problem,) = machine_problems(_config("none", "nvme", tmp_path), {"CXX": _compiler(tools, 0)})
    assert problem.message == f"offload_param: {tmp_path} can't be written to"


def test_disks_without_libaio_are_refused_with_what_the_compiler_says(tools: Path, tmp_path: Path) -> None:
    compiler = _compiler(tools, 1, "x.cpp:1:10: fatal error: libaio.h: No such file or directory")
    (problem,) = machine_problems(_config("none", "nvme", tmp_path), {"CXX": compiler})
    assert "fatal error: libaio.h" in problem.message
    assert "libaio-dev" in str(problem.advice)


@pytest.mark.parametrize(("device", "what"), [("cpu", "its CPU Adam,"), ("nvme", "CPU Adam and async_io")])
def test_offload_without_a_compiler_is_refused(tools: Path, tmp_path: Path, device: str, what: str) -> None:
    (tools / "ninja").unlink()
    (problem,) = machine_problems(_config(device, "none", tmp_path), {"CXX": "no-such-compiler -O2"})
    assert what in problem.message
    assert "no no-such-compiler and no ninja here" in problem.message


@pytest.mark.parametrize(("optimizer", "param", "part"), [("cpu", "none", "cpu_adam"), ("none", "nvme", "async_io")])
def test_lock_of_a_killed_compile_is_refused_unless_a_process_holds_it(
    tools: Path, tmp_path: Path, optimizer: str, param: str, part: str
) -> None:
    config = _config(optimizer, param, tmp_path)
    environ = {"CXX": _compiler(tools, 0), "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    lock = tmp_path / "built" / part / "lock"
    lock.parent.mkdir(parents=True)
    assert machine_problems(config, environ) == []
    with lock.open("w"):
        assert machine_problems(config, environ) == []
    (problem,) = machine_problems(config, environ)
    assert f"a compile of DeepSpeed's {part} was killed and left {lock}" in problem.message
    assert problem.advice.startswith("remove that file")


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "cache"}, {"TORCH_EXTENSIONS_DIR": "built"}])
def test_lock_is_looked_for_where_torch_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    assert str(extensions_folder(os.environ) / "cpu_adam") == _get_build_directory("cpu_adam", verbose=False)


def test_offload_that_was_built_with_deepspeed_needs_no_compiler(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.is_dir()
    monkeypatch.setattr(offload, "_is_built", lambda *_: True)
    assert machine_problems(_config("nvme", "nvme", tmp_path), {"CXX": "no-such-compiler"}) == []


def test_preflight_reports_the_folder_of_the_json(tmp_path: Path) -> None:
    config = _config("none", "nvme", tmp_path / "gone")
    del config["zero_optimization"]["offload_optimizer"]
    argv = tiny_run(write_corpus(tmp_path / "short", num_documents=40, document_length=9))
    file = write_json(tmp_path / "ds.json", config)
    with pytest.raises(ConfigError) as caught:
        preflight([*argv, "--deepspeed_config", file], {**clean_environment(), "DS_ACCELERATOR": "cpu"})
    assert f"there is no folder {tmp_path / 'gone'}" in str(caught.value)
