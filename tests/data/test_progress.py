from __future__ import annotations

import io
import logging
import re
import sys

import pytest

from megatron_ds.cli.progress import Progress, _duration
from megatron_ds.data.write_tokens import Advance


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_a_terminal_is_a_line_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "megatron_ds"), Progress(4_000_000, 100, 0) as progress:
        for _ in range(5):
            progress.add(Advance(60, 500_000, 1000))
    number = r"[\d.]+"
    assert len(caplog.messages) == 2
    expected = rf"240 documents \| 2.0 MB of 4.0 \| {number} MB/s \| {number}M tokens/s \| 0:\d\d left"
    assert re.fullmatch(expected, caplog.messages[1])


def test_progress_of_unknown_size_has_no_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "megatron_ds"), Progress(None, 1, 0) as progress:
        progress.add(Advance(1, 500_000, 1000))
    assert caplog.messages[0].startswith("1 document | 0.5 MB | ")
    assert "left" not in caplog.text


def test_progress_lines_are_not_closer_than_the_least_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "megatron_ds"), Progress(None, 1, 3600) as progress:
        progress.add(Advance(1, 1, 1))
    assert caplog.messages == []


def test_progress_on_a_terminal_is_a_bar_with_rates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO, "megatron_ds"), Progress(2_000_000, 1, 0) as progress:
        progress.add(Advance(1, 1_000_000, 1000))
        progress.add(Advance(1, 1_000_000, 1000))
    assert "2.00M/2.00M" in terminal.getvalue()
    assert "M tokens/s" in terminal.getvalue()
    assert "B/s" in terminal.getvalue()
    assert caplog.messages == []


def test_duration_is_in_minutes_or_hours() -> None:
    assert [_duration(seconds) for seconds in (0.2, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]
