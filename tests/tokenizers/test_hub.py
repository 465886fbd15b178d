"""A name of the hub that can't be loaded: one short attempt, and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = (
    "import sys; from megatron_ds.errors import ConfigError; from megatron_ds.tokenizers import build_tokenizer\n"
    "from tests.tokenizers.conftest import Flags\n"
    "try: print(build_tokenizer(Flags('HFTokenizer', tokenizer_name_or_path=sys.argv[1])).encode('a'))\n"
    "except ConfigError as error: print(error)\n"
)
# Nothing listens on this port: what a machine without a way to the hub sees.
NOWHERE = "http://127.0.0.1:9"


def load(name: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    # The libraries read these when they are imported, so each try is a process of its own.
    hub = {"HF_ENDPOINT": NOWHERE, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*", **more}
    command = [sys.executable, "-c", LOAD, name]
    return subprocess.run(command, env={**os.environ, **hub}, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", ["nobody/nothing", "my_tokeniser"])
def test_hub_name_without_an_answer_is_tried_once(tmp_path: Path, name: str) -> None:
    result = load(name, tmp_path)
    assert f"no tokenizer found for '{name}': no such file or folder, nothing kept from the hub" in result.stdout
    assert "Connection refused" in result.stdout
    assert "give a tokenizer.json, a folder that has one" in result.stdout
    assert "Retrying" not in result.stderr


def test_hub_name_offline_asks_nobody(tmp_path: Path) -> None:
    result = load("nobody/nothing", tmp_path, HF_HUB_OFFLINE="1")
    assert "offline mode is enabled" in result.stdout
    assert "Connection refused" not in result.stdout + result.stderr


def test_hub_name_that_can_not_be_one_is_explained(tmp_path: Path) -> None:
    assert "Repo id must" in load("my tokenizer", tmp_path).stdout


@pytest.mark.parametrize("offline", ["0", "1"])
def test_hub_name_that_was_loaded_before_needs_no_answer(tmp_path: Path, bpe_folder: Path, offline: str) -> None:
    (bpe_folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    kept = tmp_path / "home" / "hub" / "models--some--tokenizer"
    (kept / "refs").mkdir(parents=True)
    commit = "0123456789" * 4
    (kept / "refs" / "main").write_text(commit)
    (bpe_folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    shutil.copytree(bpe_folder, kept / "snapshots" / commit)
    result = load("some/tokenizer", tmp_path / "home", HF_HUB_OFFLINE=offline)
    assert json.loads(result.stdout)
    assert "Retrying" not in result.stderr
