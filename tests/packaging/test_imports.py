"""What importing the package does not do: touch CUDA, compile, need apex, or pull torch into what only validates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.dist.pool import ROOT

# Runs in a process of its own: imports every module and reports what that brought about.
IMPORT_ALL = """
import importlib, json, pkgutil, sys

programs = []
sys.addaudithook(lambda event, args: programs.append(str(args[0])) if event == "subprocess.Popen" else None)

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("apex", "transformer_engine", "flash_attn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())

import megatron_ds
names = [module.name for module in pkgutil.walk_packages(megatron_ds.__path__, "megatron_ds.")]
for name in names:
    importlib.import_module(name)
import torch
print(json.dumps({"names": names, "cuda": torch.cuda.is_initialized(), "programs": programs}))
"""

IMPORT_LIGHT = """
import importlib, json, pkgutil, sys
import megatron_ds
heavy_ones = sys.argv[1:]
names = []
for layer in ("errors", "utils", "config", "tokenizers", "data"):
    package = importlib.import_module(f"megatron_ds.{layer}")
    names.append(package.__name__)
    names += [m.name for m in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + ".")]
names = [name for name in names if name not in heavy_ones]
for name in names:
    importlib.import_module(name)
print(json.dumps({"names": names, "heavy": sorted({"torch", "deepspeed"} & set(sys.modules))}))
"""

# The two modules of these layers that hand tensors over.
WITH_TORCH = ("megatron_ds.data.batch", "megatron_ds.data.bert_batch", "megatron_ds.data.loader")


def _run(script: str, folder: Path, *arguments: str) -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    environment |= {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "nvcc").exists()),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
    }
    finished = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    result: dict[str, object] = json.loads(finished.stdout.splitlines()[-1])
    return result


def test_import_of_every_module_needs_no_cuda_compiler_or_apex(tmp_path: Path) -> None:
    found = _run(IMPORT_ALL, tmp_path)
    files = set((ROOT / "megatron_ds").rglob("*.py")) - {ROOT / "megatron_ds" / "__init__.py"}
    assert len(found["names"]) == len(files), "every module was imported"
    assert found["cuda"] is False
    compilers = [
        program for program in found["programs"] if Path(program).name in ("nvcc", "ninja", "g++", "c++", "gcc")
    ]
    assert compilers == []
    assert not (tmp_path / "extensions").exists(), "nothing was compiled"


def test_import_of_validating_modules_brings_in_neither_torch_nor_deepspeed(tmp_path: Path) -> None:
    found = _run(IMPORT_LIGHT, tmp_path, *WITH_TORCH)
    assert {"megatron_ds.config", "megatron_ds.data", "megatron_ds.tokenizers"} <= set(found["names"])
    assert found["heavy"] == []
