"""What the documentation points at exists: files, headings, functions, tests, and files of DeepSpeed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "megatron_ds"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Folders whose files the pages name from the repository's root.
TOP_FOLDERS = ("megatron_ds", "configs", "scripts", "tests", "docs", "benchmarks")

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)+/?")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
DOTTED = re.compile(r"[a-z_]+(\.\w+)+")


@pytest.fixture(params=PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_links_of_each_page_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(_prose(page)) if not _link_leads_somewhere(page, link)]
    assert broken == []


def test_paths_named_by_each_page_exist(page: Path) -> None:
    missing = [words for words in _code(page) if PATH.fullmatch(words) and not _path_exists(words)]
    assert missing == []


def test_tests_named_by_each_page_exist(page: Path) -> None:
    named = TEST.findall(page.read_text())
    assert [f"{file}::{test}" for file, test in named if test not in _names(ROOT / file)] == []


def test_functions_named_by_each_page_exist(page: Path) -> None:
    missing = [words for words in _code(page) if DOTTED.fullmatch(words) and not _function_exists(words)]
    assert missing == []


def test_checks_find_what_is_missing() -> None:
    page = ROOT / "docs" / "README.md"
    assert _link_leads_somewhere(page, "architecture.md#the-three-rules")
    assert not _link_leads_somewhere(page, "architecture.md#the-four-rules")
    assert not _link_leads_somewhere(page, "nowhere.md")
    assert _path_exists("engine/build.py")
    assert not _path_exists("engine/nowhere.py")
    assert not _path_exists("deepspeed/runtime/nowhere.py")
    assert _function_exists("megatron_ds.engine.build.build_engine")
    assert not _function_exists("engine.build.nothing")


def _prose(page: Path) -> str:
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _code(page: Path) -> Iterator[str]:
    """What stands in backticks."""
    return (match.strip() for match in CODE.findall(_prose(page)))


def _link_leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith(("http://", "https://", "mailto:")):
        return True
    target, _, heading = link.partition("#")
    file = page.parent / target if target else page
    if not file.exists():
        return False
    return not heading or heading in _anchors(file)


@cache
def _anchors(file: Path) -> set[str]:
    """The anchors that GitHub makes from a page's headings."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _path_exists(words: str) -> bool:
    """False for a path of this repository or of DeepSpeed that is not there; other paths are the reader's own."""
    first = words.split("/", maxsplit=1)[0]
    if first == "deepspeed":
        return words == "deepspeed/" or (_deepspeed().parent / words).exists()
    if first in TOP_FOLDERS:
        return (ROOT / words).exists()
    if words.endswith(".py") and (PACKAGE / first).is_dir():
        return (PACKAGE / words).exists()
    return True


@cache
def _deepspeed() -> Path:
    spec = find_spec("deepspeed")  # found, not imported
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _function_exists(words: str) -> bool:
    """False for ``layer.module.name`` whose module exists and has no such name; options are written alike."""
    layer, *rest = words.removeprefix("megatron_ds.").split(".")
    if not rest:
        return True
    module = PACKAGE / layer / f"{rest[0]}.py"
    return len(rest) < 2 or not module.is_file() or rest[1] in _names(module)


@cache
def _names(file: Path) -> set[str]:
    """Functions, classes and constants of a file, and the functions of its classes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())) if file.is_file() else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
