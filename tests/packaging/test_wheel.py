"""A wheel built from the repository works where there is no repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import megatron_ds
from tests.dist.pool import ROOT

PROBE = """
import json, megatron_ds
from megatron_ds.config.files import presets_folder, read_deepspeed_config, read_model_preset
folder = presets_folder()
print(json.dumps({
    "package": megatron_ds.__file__,
    "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*.json")),
    "preset": read_model_preset("gpt2_125m", "--model-preset").content,
    "deepspeed": read_deepspeed_config("zero1_bf16").content,
}))
"""


def _run(*command: str | Path, **options: object) -> str:
    finished = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_installed_elsewhere_finds_its_presets(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    _run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    found = json.loads(_run(sys.executable, "-c", PROBE, cwd=tmp_path, env=environment))
    assert Path(found["package"]).is_relative_to(target)
    assert found["files"] == sorted(
        str(file.relative_to(ROOT / "configs")) for file in (ROOT / "configs").rglob("*.json")
    )
    assert found["preset"] == json.loads((ROOT / "configs/models/gpt2_125m.json").read_text())
    assert found["deepspeed"] == json.loads((ROOT / "configs/deepspeed/zero1_bf16.json").read_text())
    words = ("--deepspeed_config", "gpt2_125m", "--vocab-size", "50257", "--data-path", "nowhere")
    command = [sys.executable, "-m", "megatron_ds.cli.pretrain", *words]
    started = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert started.returncode == 2
    assert "data file not found: nowhere.bin" in started.stderr


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    version = megatron_ds.__version__
    assert wheel.name == f"megatron_ds-{version}-py3-none-any.whl"
    assert {name.split("/")[0] for name in names} == {"megatron_ds", f"megatron_ds-{version}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    own = {str(file.relative_to(ROOT)) for file in (ROOT / "megatron_ds").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == own


def test_wheel_commands_lead_to_a_function(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    lines = archive.read(entry_points).decode().splitlines()
    targets = [line.split(" = ")[1] for line in lines if " = " in line]
    assert targets
    for target in targets:
        module, function = target.split(":")
        source = archive.read(module.replace(".", "/") + ".py").decode()
        assert f"def {function}(" in source
