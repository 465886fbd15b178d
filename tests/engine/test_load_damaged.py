"""A checkpoint whose files are not what they should be is one clear error, on the rank that finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.errors import CheckpointError, ConfigError
from tests.dist.pool import run_ranks


def _save(case: Case, folder: str) -> str:
    tiny = TinyRun(case)
    tiny.train_step(0)
    tiny.save(Path(folder))
    return str(Path(folder) / "global_step1")


def _load(case: Case, folder: str) -> str:
    try:
        TinyRun(case).load(Path(folder))
    except CheckpointError as error:
        return str(error)
    return "loaded"


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
@pytest.mark.parametrize("kind", ["model", "optim"])
def test_load_of_a_damaged_file_is_a_checkpoint_error(kind: str, damage: str, tmp_path: Path) -> None:
    case = Case(zero=1)
    (checkpoint,) = run_ranks(1, _save, case=case, folder=str(tmp_path))
    assert run_ranks(1, _load, case=case, folder=str(tmp_path)) == ["loaded"]
    file = next(Path(checkpoint).glob(f"*{kind}_states.pt"))
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 0 if damage == "empty" else -10])
    (message,) = run_ranks(1, _load, case=case, folder=str(tmp_path))
    assert str(file) in message
    assert ("is missing" if damage == "missing" else "is not the file that was saved") in message


def _partition(case: Case) -> str:
    try:
        TinyRun(case)
    except ConfigError as error:
        return str(error)
    return "built"


def test_partition_pattern_that_matches_no_layer_is_refused_on_all_ranks() -> None:
    case = Case(pp=2, more=("--pp-partition-method", "type:rmsnorm"))  # other models have it
    for message in run_ranks(2, _partition, case=case):
        assert "'type:rmsnorm' matches no layer" in message
        assert "ParallelTransformerLayer" in message
