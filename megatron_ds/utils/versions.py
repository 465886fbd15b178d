"""Which releases of the libraries this package works with, checked at start without importing any of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from megatron_ds.errors import Problem, Source

Release = tuple[int, ...]


@dataclass(frozen=True)
class VersionRange:
    """The releases of one library that this package works with. pyproject.toml says the same to pip.

    Attributes:
        name: the distribution's name.
        lowest: the first release in the range.
        below: the first release after the range; None when there is no upper end.
    """

    name: str
    lowest: Release
    below: Release | None = None

    def __contains__(self, release: Release) -> bool:
        return self.lowest <= release and (self.below is None or release < self.below)

    def __str__(self) -> str:
        upper = "" if self.below is None else f",<{_dotted(self.below)}"
        return f"{self.name}>={_dotted(self.lowest)}{upper}"


VERSION_RANGES = (
    VersionRange("torch", (2, 9)),
    VersionRange("deepspeed", (0, 19, 8), (0, 20)),
    VersionRange("transformers", (5, 0), (6,)),
)


def check_versions(installed: Callable[[str], str] = version) -> list[Problem]:
    """Compares the installed libraries with `VERSION_RANGES`.

    Args:
        installed: gives the version of a distribution; raises PackageNotFoundError when there is none.

    Returns:
        One problem for each library that is missing or out of range.
    """
    problems = []
    for wanted in VERSION_RANGES:
        advice = f"pip install -c constraints.txt '{wanted}'"
        try:
            found = installed(wanted.name)
        except PackageNotFoundError:
            problems.append(Problem(f"{wanted.name} is not installed; this package needs {wanted}", advice=advice))
            continue
        if _release(found) not in wanted:
            problems.append(
                Problem(
                    f"{wanted.name} {found} is installed, but this package works with {wanted}",
                    (Source(wanted.name, found, "the installed packages"),),
                    advice,
                )
            )
    return problems


def _release(text: str) -> Release:
    """The numbers of a version: ``2.13.0a1+cpu`` is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))
