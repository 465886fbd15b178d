"""How fast checkpoints are read, cut anew and exported, beside plain writers of the same bytes.

    python -m benchmarks.convert [--hidden-size 1024] [--num-layers 8] [--repeats 3] [--folder DIR]

Trains one step of a Llama-like model at TP2 x PP2 (bf16, ZeRO-1) on four processes of this machine's CPU and saves it.
Then each tool runs on it in a process of its own. A JSON line for each: median seconds after one run that is not
counted, gigabytes per second of what it wrote, and the largest memory of the process (its own pages: files are
mapped). Beside them `torch.save` and safetensors write the tensors of `merge` and of `reshard`, which they get ready in
memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.zero_pieces import STATES, Kind
from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from tests.dist.pool import run_ranks

# From a checkpoint's folder to a file or folder to be written.
Job = Callable[[Path, Path], None]
LLAMA = ("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear")


def _train(case: Case, folder: Path) -> None:
    tiny = TinyRun(case)
    tiny.train_step(0)
    tiny.save(folder)


def _tool(*words: str) -> Job:
    return lambda source, target: checkpoint_tool(
        [words[0], "--input", str(source), "--output", str(target), *words[1:]]
    )


def _tensors(source: Path, kinds: tuple[Kind, ...]) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(source)
    return {f"{kind}/{name}": checkpoint.read(name, kind).clone() for kind in kinds for name in checkpoint.specs}


def _plain(
    save: Callable[[dict[str, torch.Tensor], Path], None], kinds: tuple[Kind, ...]
) -> Callable[[Path, Path], None]:
    ready: dict[str, torch.Tensor] = {}

    def write(source: Path, target: Path) -> None:
        if not ready:
            ready.update(_tensors(source, kinds))
        save(ready, target)

    return write


EVERYTHING: tuple[Kind, ...] = ("weights", *STATES)
JOBS: dict[str, tuple[Job, str]] = {
    "merge": (_tool("merge"), "one.safetensors"),
    "torch.save of the same": (_plain(torch.save, ("weights",)), "one.pt"),
    "safetensors of the same": (_plain(save_file, ("weights",)), "plain.safetensors"),
    "to-fp32": (_tool("to-fp32"), "fp32.safetensors"),
    "export --format hf": (_tool("export", "--format", "hf"), "hf"),
    "export --format megatron": (_tool("export", "--format", "megatron", "--target-tp", "2"), "megatron"),
    "reshard to TP4": (_tool("reshard", "--target-tp", "4"), "tp4"),
    "torch.save of everything": (_plain(torch.save, EVERYTHING), "all.pt"),
    "safetensors of everything": (_plain(save_file, EVERYTHING), "all.safetensors"),
}


class _PeakMemory:
    """This process's largest memory in a ``with`` block, above that before it: its own pages, not those of files."""

    def __enter__(self) -> _PeakMemory:
        self._before = self._largest = _own_kb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_mb(self) -> float:
        return (self._largest - self._before) / 1e3

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._largest = max(self._largest, _own_kb())


def _own_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def _measure(name: str, source: Path, folder: Path, repeats: int) -> dict[str, float]:
    """Runs a job some times; in a process of its own."""
    job, target_name = JOBS[name]
    target = folder / target_name
    seconds = []
    with _PeakMemory() as memory:
        for _ in range(repeats + 1):
            _remove(target)
            start = time.perf_counter()
            job(source, target)
            seconds.append(time.perf_counter() - start)
            # A plain writer makes its tensors ready in the first run, which is not counted.
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    _remove(target)
    median = statistics.median(seconds[1:])
    return {
        "seconds": round(median, 3),
        "gb_written": round(size / 1e9, 3),
        "gb_per_second": round(size / 1e9 / median, 3),
        "peak_memory_mb": round(memory.peak_mb),
    }


def _remove(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    options = parser.parse_args()
    size = ("--hidden-size", str(options.hidden_size), "--vocab-size", "32000")
    case = Case(
        tp=2,
        pp=2,
        zero=1,
        precision="bf16",
        tied=False,
        num_layers=options.num_layers,
        global_batch_size=2,
        more=(*LLAMA, "--num-query-groups", "2", "--ffn-hidden-size", str(4 * options.hidden_size), *size),
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        source = Path(root) / "run"
        run_ranks(4, _train, case=case, folder=source, timeout=900)
        context = mp.get_context("spawn")
        for name in JOBS:
            with context.Pool(1) as pool:
                row = pool.apply(_measure, (name, source, Path(root), options.repeats))
            print(json.dumps({"job": name, **row}), flush=True)


if __name__ == "__main__":
    main()
