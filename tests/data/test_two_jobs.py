from __future__ import annotations

import multiprocessing
from pathlib import Path

from tests.data.conftest import build, numbered_documents, rows, write_documents


def first_samples(prefix: str) -> list[list[int]]:
    return rows(build(prefix, train=200).train)


def test_cache_two_jobs_at_once_get_the_same_samples(tmp_path: Path) -> None:
    """D14 (g): both find a cold cache and both build it."""
    prefix = write_documents(tmp_path / "a", numbered_documents([50] * 40))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(first_samples, [prefix] * 4, chunksize=1)
    assert all(result == results[0] for result in results)
    assert results[0] == first_samples(prefix)
    assert sorted(path.suffix for path in (tmp_path / "a_cache").iterdir()) == [".json", ".npy", ".npy"]
