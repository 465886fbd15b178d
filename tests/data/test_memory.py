"""D17: memory of preprocessing, of a process and its workers, whatever the input."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tokenizers.conftest import byte_level_bpe

MIB = 1 << 20
# The system's count of a process starts with the memory of the one that started it, here pytest's. VmHWM does not.
RUN = """
import multiprocessing, re, resource, sys
from pathlib import Path
from megatron_ds.cli import preprocess
preprocess.BATCH_BYTES = int(sys.argv[1])
preprocess.main(sys.argv[2:])
# A child counts when it has ended.
for child in multiprocessing.active_children():
    child.join()
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
status = Path("/proc/self/status")
if status.exists():
    peaks[0] = int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1])
print(*(peak * (1 if sys.platform == "darwin" else 1024) for peak in peaks))
"""


def peak_bytes(tmp_path: Path, texts: Iterable[str], batch_bytes: int, more: tuple[str, ...] = ()) -> tuple[int, int]:
    """The most memory of the main process, and of its largest worker, of two."""
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    command = ["--input", str(tmp_path / "in.jsonl"), "--output-prefix", str(tmp_path / "out"), "--workers", "2"]
    command += ["--tokenizer-type", "HFTokenizer", "--tokenizer-name-or-path", str(tmp_path), *more]
    output = subprocess.run(
        [sys.executable, "-c", RUN, str(batch_bytes), *command], capture_output=True, text=True, check=True
    )
    main, worker = map(int, output.stdout.split()[-2:])
    return main, worker


def random_words(draw: random.Random, count: int) -> str:
    return " ".join("".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 12))) for _ in range(count))


def peaks_of_documents(tmp_path: Path, backend: str) -> list[tuple[int, int]]:
    """For a thousand documents of random words, and for ten thousand."""
    draw = random.Random(0)
    more = ("--tokenizer-backend", backend)
    return [
        peak_bytes(tmp_path, (random_words(draw, 100) for _ in range(count)), 50_000, more) for count in (1000, 10_000)
    ]


def test_preprocess_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path) -> None:
    few, many = map(sum, peaks_of_documents(tmp_path, "tokenizers"))
    assert many / few < 1.3


def test_preprocess_memory_of_the_fast_backend_is_bounded(tmp_path: Path) -> None:
    """It starts anew after 8 MiB of new words; what the allocator keeps of earlier ones was 53 MiB at most."""
    (main_few, worker_few), (main_many, worker_many) = peaks_of_documents(tmp_path, "gigatoken")
    assert main_many - main_few < 32 * MIB
    assert worker_many - worker_few < 96 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "letters", "spaces"])
def test_preprocess_memory_of_a_line_of_5_mb_is_small(tmp_path: Path, kind: str) -> None:
    draw = random.Random(0)
    text = {
        "words": lambda: random_words(draw, 620_000),
        "letters": lambda: "".join(draw.choices(string.ascii_lowercase, k=5_000_000)),
        "spaces": lambda: "a" + " " * 5_000_000,
    }[kind]()
    main, worker = peak_bytes(tmp_path, [text], 1 << 20)
    assert main + 2 * worker < 500 * MIB
