"""Takes the place of DeepSpeed's own writer of files: hashed, on disk when it says so, in the background if wanted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import torch
from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from torch.utils.serialization import config as torch_save_config

from megatron_ds.checkpoint.hashed_file import FileRecord, HashedFile
from megatron_ds.checkpoint.pending import PendingFiles
from megatron_ds.engine.host_copies import HostCopies


class CheckpointWriter(CheckpointEngine):  # type: ignore[misc]
    """What DeepSpeed's ``save_checkpoint`` calls for each file.

    It raises nothing: a rank that left DeepSpeed's code early would let the others wait in the next barrier. Failures
    are in what `PendingFiles.write` returns.

    Args:
        rank: this rank.
        pin_memory: copies for background writing lie in page-locked memory, to which GPUs copy fast.
    """

    def __init__(self, rank: int, *, pin_memory: bool) -> None:
        super().__init__()
        self._rank = rank
        self._copies = HostCopies(pin_memory=pin_memory)
        self._in_background = False
        self._pending = PendingFiles(Path(), rank)

    def begin(self, folder: Path, *, in_background: bool) -> PendingFiles:
        """Starts a checkpoint.

        Args:
            folder: of the checkpoint.
            in_background: copies states to host memory, and leaves writing to `PendingFiles.write`. Only one such
                checkpoint may be unfinished: the copies' memory is used again.

        Returns:
            What will hold the checkpoint's files.
        """
        self._in_background = in_background
        self._pending = PendingFiles(folder, self._rank)
        return self._pending

    def finish(self) -> None:
        """Ends what `begin` started: from here on, training may change the states."""
        self._copies.wait()

    def save(self, state_dict: Any, path: str) -> None:
        """Writes a state, or copies it to be written later."""
        file = Path(path)
        if self._in_background:
            state_dict = self._copies.copy(state_dict, file.name)
        self._pending.add(file, partial(_write, state_dict, file))
        if not self._in_background:
            self._pending.write()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a folder."""
        try:
            Path(path).mkdir(parents=True, exist_ok=exist_ok)
        except OSError as error:
            self._pending.fail(error, Path(path))

    def preserves_storage_sharing(self) -> bool:
        """Whether a tensor that is a piece of a larger one takes all of it along, unless DeepSpeed clones it before."""
        return not self._in_background

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing to prepare."""

    def commit(self, info: CheckpointCommitInfo) -> bool:  # noqa: ARG002
        """Nothing: whoever knows of all ranks' files makes a checkpoint valid."""
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """Loads a file, for DeepSpeed's ``load_checkpoint``."""
        return torch.load(path, map_location=map_location, weights_only=False)


def _write(state: Any, path: Path) -> FileRecord:
    """Writes a state with ``torch.save``, as a zip archive, whose tensors can be mapped into memory.

    Raises:
        OSError: the file can't be written.
    """
    # The archive's own checksums, which PyTorch doesn't read, say no more than the hash. Working them out would hold
    # Python's interpreter lock, a second for each 1.2 GB, in which a training thread stands still.
    with HashedFile(path) as file, torch_save_config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(state, cast("IO[bytes]", file))
        return file.complete()


def install_writer(deepspeed_engine: Any, rank: int, device: torch.device) -> CheckpointWriter:
    """Has a DeepSpeed engine write its checkpoints through a `CheckpointWriter`, without scripts beside them.

    Args:
        deepspeed_engine: what ``deepspeed.initialize`` returned.
        rank: this rank.
        device: that trains.
    """
    writer = CheckpointWriter(rank, pin_memory=device.type == "cuda")
    deepspeed_engine.checkpoint_engine = writer
    # It would copy zero_to_fp32.py and zero_to_torch.py into the run's folder.
    deepspeed_engine._copy_recovery_script = _no_script
    return writer


def _no_script(folder: str) -> None:
    pass
