"""The files with weights of a model of transformers: one, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from megatron_ds.checkpoint.safetensors_file import SafetensorsFile

INDEX_NAME = "model.safetensors.index.json"


def write_files(folder: Path, tensors: Iterable[tuple[str, Tensor]], names: Iterable[str], max_bytes: int) -> list[str]:
    """Writes ``model.safetensors``, or several ``model-0000N-of-0000M.safetensors`` with an index.

    Args:
        folder: where to; it has no such files.
        tensors: names and tensors, in the order of `names`; each is let go before the next is asked for.
        names: all names that there will be.
        max_bytes: most bytes of tensors in one file; a larger tensor has one to itself.

    Returns:
        The names of the files.
    """
    names = list(names)
    files: list[SafetensorsFile] = []
    for name, tensor in tensors:
        if not files or 0 < files[-1].num_bytes > max_bytes - tensor.nbytes:
            if files:
                files[-1].close()
            files.append(SafetensorsFile(folder / f"{len(files)}.partial", names))
        files[-1].add(name, tensor)
    files[-1].close()
    if len(files) == 1:
        files[0].path.rename(folder / "model.safetensors")
        return ["model.safetensors"]
    places: dict[str, str] = {}
    for number, file in enumerate(files, 1):
        final = f"model-{number:05}-of-{len(files):05}.safetensors"
        file.path.rename(folder / final)
        places |= dict.fromkeys(file.names, final)
    size = {"total_size": sum(file.num_bytes for file in files)}
    index = {"metadata": size, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return list(dict.fromkeys(places.values()))
