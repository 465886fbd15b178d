"""Manifests that list a file as it is now."""

from __future__ import annotations

import json
from pathlib import Path

from megatron_ds.checkpoint.hashed_file import sample_of
from megatron_ds.checkpoint.verify import sha256_of


def list_anew(checkpoint: Path, file: Path) -> None:
    """Lists a file of a checkpoint as if it had been saved as it is."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    record = {"bytes": file.stat().st_size, "sha256": sha256_of(file), "sample": sample_of(file)}
    manifest["files"][file.relative_to(checkpoint).as_posix()] = record
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
