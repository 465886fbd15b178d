"""A preset with flags over it, from the command line: alone, and cut over two processes with sequence parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.helpers import PRETRAIN, TP, VOCAB_SIZE, fork, losses, tiny_run

_SMALL = ("--num-query-groups", "2", "--ffn-hidden-size", "96", "--vocab-size", str(VOCAB_SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["llama3p1_8b", "bloom_560m"])
def test_small_run_of_a_preset_trains_alike_on_one_process_and_sequence_parallel(
    preset: str, corpus: str, tmp_path: Path
) -> None:
    flags = [*tiny_run(corpus), "--model-preset", preset, *_SMALL]
    alone = fork(1, PRETRAIN, *flags, "--save", "alone", folder=tmp_path)
    assert alone.exit_code == 0, alone.output
    cut = fork(2, PRETRAIN, *flags, TP, "2", "--sequence-parallel", "--save", "cut", folder=tmp_path)
    assert cut.exit_code == 0, cut.output
    assert "TP2 x PP1 x DP1, ZeRO-0, fp32, sequence-parallel on 2 processes" in cut.output
    expected, found = losses(tmp_path / "alone"), losses(tmp_path / "cut")
    assert [line[:2] for line in found] == [line[:2] for line in expected]
    assert [loss for *_, loss in found] == pytest.approx([loss for *_, loss in expected], rel=1e-5)
