"""The versions that are checked at start."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from megatron_ds.utils.versions import VERSION_RANGES, check_versions
from tests.dist.pool import ROOT

GOOD = {"torch": "2.9.0+cu128", "deepspeed": "0.19.8", "transformers": "5.0.0"}


def _installed(**changes: str | None):
    versions = {**GOOD, **changes}

    def installed(name: str) -> str:
        found = versions[name]
        if found is None:
            raise PackageNotFoundError(name)
        return found

    return installed


def test_check_versions_of_this_environment_finds_nothing() -> None:
    assert check_versions() == []


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch", "2.9"),
        ("torch", "2.14.0a0+git1234"),
        ("torch", "3.0.0"),
        ("deepspeed", "0.19.10"),
        ("transformers", "5.99.1"),
    ],
)
def test_check_versions_in_range_finds_nothing(name: str, version: str) -> None:
    assert check_versions(_installed(**{name: version})) == []


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch", "2.8.1"),
        ("torch", "1.13.1"),
        ("deepspeed", "0.19.7"),
        ("deepspeed", "0.20.0"),
        ("deepspeed", "0.9.5"),
        ("transformers", "4.57.0"),
        ("transformers", "6.0.0"),
    ],
)
def test_check_versions_out_of_range_names_both(name: str, version: str) -> None:
    (problem,) = check_versions(_installed(**{name: version}))
    (wanted,) = [str(entry) for entry in VERSION_RANGES if entry.name == name]
    assert problem.message == f"{name} {version} is installed, but this package works with {wanted}"
    assert f"pip install -c constraints.txt '{wanted}'" in str(problem)


def test_check_versions_reports_all_problems_together() -> None:
    problems = check_versions(_installed(torch=None, deepspeed="0.18.0", transformers="4.0"))
    assert [problem.message.split()[0] for problem in problems] == ["torch", "deepspeed", "transformers"]
    assert "is not installed" in problems[0].message


def test_version_ranges_are_those_of_pyproject() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for entry in VERSION_RANGES:
        assert f'"{entry}",' in declared
