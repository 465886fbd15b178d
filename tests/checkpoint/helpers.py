"""What tests of checkpoints share."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def is_mapped(tensor: Tensor, path: Path) -> bool:
    """Whether a tensor's memory is the file itself, by the process's table of mappings."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            if start <= tensor.data_ptr() < end:
                return True
    return False
