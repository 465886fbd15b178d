"""Answers two questions of `lib.sh` about an interpreter, with what pip brings along.

    python requirements.py missing EXTRA     prints the requirements that this interpreter does not satisfy
    python requirements.py constraints       prints constraints.txt, with torch as it is installed if that is in range

Runs on Python 3.10 before anything is installed, so it reads TOML and versions through the libraries inside pip.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.version import Version

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict[str, Any]:
    """The project table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def requirements(extra: str) -> list[Requirement]:
    """What the package needs, with an extra or without (empty), extras that name other extras included."""
    table = project()
    lines = list(table["dependencies"])
    pending = [extra] if extra else []
    while pending:
        for line in table["optional-dependencies"][pending.pop()]:
            requirement = Requirement(line)
            if requirement.name == table["name"]:
                pending += requirement.extras
            else:
                lines.append(line)
    return [Requirement(line) for line in lines]


def installed(name: str) -> Version | None:
    """The installed version of a distribution."""
    try:
        return Version(version(name))
    except PackageNotFoundError:
        return None


def is_satisfied(requirement: Requirement) -> bool:
    """Whether an installed version is in the requirement's range."""
    if requirement.marker and not requirement.marker.evaluate():
        return True
    found = installed(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def constraints() -> list[str]:
    """The tested versions; an installed torch in range takes the place of the tested one, whatever it was built for."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = [requirement for requirement in requirements("") if requirement.name == "torch"]
    found = installed("torch")
    if found is not None and is_satisfied(torch):
        lines = [f"torch=={found.public}" if line.startswith("torch==") else line for line in lines]
    return lines


def main(arguments: list[str]) -> None:
    """Prints the answer, one line each."""
    if arguments[0] == "missing":
        lines = [str(requirement) for requirement in requirements(arguments[1]) if not is_satisfied(requirement)]
    else:
        lines = constraints()
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
