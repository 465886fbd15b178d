"""No module uses names that torch keeps to itself: they change from release to release without notice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.dist.pool import ROOT

# Name -> why there is no public way.
ALLOWED: dict[str, str] = {}


def _private_torch_names(source: str) -> list[str]:
    """The dotted names below torch with a private part, as imported or as attributes, whatever they are called here."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    aliases[name.asname] = name.name
                else:
                    aliases[name.name.split(".")[0]] = name.name.split(".")[0]
                found.append(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
                found.append(f"{node.module}.{name.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            head, _, rest = dotted.partition(".")
            if head in aliases:
                found.append(f"{aliases[head]}.{rest}")
    return sorted({name for name in found if _is_private(name)})


def _is_private(name: str) -> bool:
    first, *others = name.split(".")
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in others)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch._six", ["torch._six"]),
        ("from torch._six import inf", ["torch._six.inf"]),
        ("from torch.distributed import _functional_collectives as c", ["torch.distributed._functional_collectives"]),
        ("import torch.distributed as dist\ndist._barrier(1)", ["torch.distributed._barrier"]),
        ("import torch\nx = torch._C._get_cudnn_enabled()", ["torch._C", "torch._C._get_cudnn_enabled"]),
        ("import torch\nx = torch.cuda.__name__\nself._torch = torch.zeros(1)", []),
    ],
)
def test_private_torch_names_finds_every_way_to_them(source: str, names: list[str]) -> None:
    assert _private_torch_names(source) == names


def test_package_uses_no_private_torch_names() -> None:
    files = sorted((ROOT / "megatron_ds").rglob("*.py"))
    assert len(files) > 20
    used = {file: _private_torch_names(file.read_text(encoding="utf-8")) for file in files}
    unexpected = {_relative(file): sorted(set(names) - ALLOWED.keys()) for file, names in used.items()}
    assert {file: names for file, names in unexpected.items() if names} == {}
    assert ALLOWED.keys() <= {name for names in used.values() for name in names}, "the list has no dead entries"


def _relative(file: Path) -> str:
    return str(file.relative_to(ROOT))
