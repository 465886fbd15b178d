"""The layer picture holds: imports point down, and only the engine knows DeepSpeed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dist.pool import ROOT


def test_layer_contracts_are_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    finished = subprocess.run(
        [*command, "--cache-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "0 broken" in finished.stdout
