"""English prose that every development machine has: the docstrings of installed packages, as data for a BERT.

    python -m benchmarks.english_text OUT.jsonl [--sources DIR]

A document is what the docstrings of one file say, paragraph by paragraph, without code, tables and lists of arguments.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# A paragraph of prose: it begins like a sentence, ends like one, and has several words.
_PROSE = re.compile(r"[A-Z][^`|=<>{}\\]*[.!?]", re.DOTALL)
_FEWEST_WORDS = 12


def paragraphs(path: Path) -> Iterator[str]:
    """Paragraphs of prose in the docstrings of a Python file, each in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)) if text else ():
            line = " ".join(paragraph.replace("`", "").replace("*", "").split())
            if _PROSE.fullmatch(line) and "---" not in line and len(line.split()) >= _FEWEST_WORDS:
                yield line


def documents(sources: Path) -> Iterator[str]:
    """The prose of every file below a folder, in a fixed order that names don't tell; no paragraph twice."""
    seen: set[bytes] = set()
    for path in sorted(sources.rglob("*.py"), key=lambda path: hashlib.sha256(str(path).encode()).digest()):
        new = []
        for line in paragraphs(path):
            key = hashlib.sha256(line.encode()).digest()
            if key not in seen:
                seen.add(key)
                new.append(line)
        if new:
            yield " ".join(new)


def main() -> None:
    """Writes the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--sources", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    arguments = parser.parse_args()
    count = characters = 0
    with arguments.output.open("w", encoding="utf-8") as file:
        for text in documents(arguments.sources):
            file.write(json.dumps({"text": text}) + "\n")
            count, characters = count + 1, characters + len(text)
    print(json.dumps({"documents": count, "characters": characters}))


if __name__ == "__main__":
    main()
