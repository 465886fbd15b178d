"""What all tests share. Tests with several ranks use `tests.dist.pool.run_ranks`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="run the tests marked gpu, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests marked gpu when asked for them, and all others when not."""
    wanted = bool(config.getoption("--gpu"))
    left_out = [item for item in items if (item.get_closest_marker("gpu") is not None) != wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
