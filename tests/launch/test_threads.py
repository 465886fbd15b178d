"""Processes of one host share its cores: DeepSpeed's launcher would let each use all of them."""

from __future__ import annotations

import pytest

NAMES = ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")


@pytest.mark.parametrize(
    ("environment", "world_size", "cores", "threads"),
    [
        ({}, 1, 8, [8]),
        ({"LOCAL_SIZE": "4"}, 4, 8, [2]),  # deepspeed: the number comes as text
        ({"LOCAL_WORLD_SIZE": "4"}, 8, 8, [2]),  # torchrun on two hosts
        ({}, 4, 8, [2]),  # neither: one host
        ({"LOCAL_SIZE": "4"}, 4, 2, [1]),
        ({"LOCAL_SIZE": "4", "OMP_NUM_THREADS": "3"}, 4, 8, []),  # the user's choice stays
    ],
)
def test_share_cores_sets_threads_per_process(
    environment: dict[str, str],
    world_size: int,
    cores: int,
    threads: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from megatron_ds.engine import distributed

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(distributed, "_num_cores", lambda: cores)
    distributed._share_cores(world_size)
    assert chosen == threads
