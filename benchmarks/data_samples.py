"""Sample indices, blends and the loader, beside Megatron core's functions where it is installed.

    python -m benchmarks.data index | blend | loader [--repeats 3]

Prints JSON lines with medians. `process_seconds` is a whole process, from its start to its end, after one that is not
counted; the others are measured inside of it.

    index   1e9 tokens in 1e6 documents, 3 epochs at sequence length 2048: cold (nothing in the cache) and warm
    blend   1e8 draws from 10 sets: until the first draw is known, and all of them
    loader  micro-batches of 8 samples of 2048 + 1 tokens, without workers; the bound is a bare copy out of the map
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LENGTH = 2048
INDEX_TOKENS, INDEX_DOCUMENTS, INDEX_EPOCHS = 10**9, 10**6, 3
BLEND_DRAWS, BLEND_SETS = 10**8, 10
LOADER_TOKENS, LOADER_SAMPLES = 10**8, 40_000


def measure(part: str, repeats: int) -> None:
    """Measures ``index``, ``blend`` or ``loader``, and prints JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        PARTS[part](Path(folder), repeats)


def _index(folder: Path, repeats: int) -> None:
    sparse_corpus(folder / "index", INDEX_TOKENS, INDEX_DOCUMENTS)
    cache = folder / "index_cache"
    _measure("index cold", "megatron_ds", "ours-index", folder, repeats, before=lambda: _remove(cache))
    _measure("index warm", "megatron_ds", "ours-index", folder, repeats)
    _measure("index cold", "megatron core", "core-index", folder, repeats)


def _blend(folder: Path, repeats: int) -> None:
    _measure("blend", "megatron_ds", "ours-blend", folder, repeats)
    _measure("blend", "megatron core", "core-blend", folder, repeats)


def _loader(folder: Path, repeats: int) -> None:
    random_corpus(folder / "loader", LOADER_TOKENS)
    _measure("loader", "megatron_ds", "ours-loader", folder, repeats)
    _measure("loader", "bound: bare memory map", "bare-loader", folder, repeats)


def _measure(
    name: str, who: str, child: str, folder: Path, repeats: int, before: Callable[[], None] = lambda: None
) -> None:
    """Runs a child several times and prints the medians of what it measured and of its whole process."""
    results = []
    for _ in range(repeats + 1):
        before()
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.data_samples", child, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["?"])[-1]
            print(json.dumps({"measurement": name, "who": who, "skipped": reason}), flush=True)
            return
        results.append({"process_seconds": seconds, **json.loads(done.stdout.splitlines()[-1])})
    counted = results[1:]
    medians = {key: round(statistics.median(result[key] for result in counted), 4) for key in counted[0]}
    print(json.dumps({"measurement": name, "who": who, **medians}), flush=True)


def sparse_corpus(prefix: Path, num_tokens: int, num_documents: int) -> None:
    """Token files of which only the index takes room on the disk."""
    from megatron_ds.data.indexed_format import HEADER, IndexHeader, byte_pointers, dtype_code

    lengths = np.full(num_documents, num_tokens // num_documents, np.int32)
    lengths += np.random.default_rng(0).integers(-900, 901, num_documents // 2).repeat(2).astype(np.int32) * np.tile(
        np.array([1, -1], np.int32), num_documents // 2
    )
    with Path(f"{prefix}.idx").open("wb") as file:
        header = IndexHeader(dtype_code(np.dtype(np.uint16)), num_documents, num_documents + 1).to_bytes()
        assert len(header) == HEADER.size
        file.write(header + lengths.tobytes() + byte_pointers(lengths, 2).tobytes())
        file.write(np.arange(num_documents + 1, dtype=np.int64).tobytes())
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(2 * int(lengths.sum()))


def random_corpus(prefix: Path, num_tokens: int) -> None:
    """Token files of documents of 1 to 2000 tokens."""
    from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(0)
    lengths = random.integers(1, 2000, num_tokens // 1000)
    with IndexedDatasetBuilder(str(prefix), np.uint16) as builder:
        builder.add_documents(random.integers(0, 50257, int(lengths.sum())).astype(np.uint16), lengths)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _ours_dataset(prefix: str, num_samples: int) -> Any:
    from megatron_ds.config.blocks import DataConfig
    from megatron_ds.data import SampleCounts, build_gpt_datasets

    return build_gpt_datasets(
        DataConfig(data_path=[prefix], split="1,0,0"),
        seq_length=SEQ_LENGTH,
        seed=1,
        samples=SampleCounts(num_samples, 0, 0),
        is_builder=True,
        wait=lambda: None,
    ).train


def _ours_index(folder: str) -> dict[str, float]:
    start = time.perf_counter()
    train = _ours_dataset(f"{folder}/index", INDEX_TOKENS * INDEX_EPOCHS // SEQ_LENGTH)
    seconds = time.perf_counter() - start
    assert len(train[0]) == SEQ_LENGTH + 1
    return {"seconds_to_first_sample": seconds}


def _core_index(folder: str) -> dict[str, float]:
    """The functions that Megatron core's GPTDataset builds its three index arrays with."""
    from megatron.core.datasets import helpers  # type: ignore[import-not-found]

    from megatron_ds.data.indexed_dataset import IndexedDataset

    sizes = IndexedDataset(f"{folder}/index").sizes
    start = time.perf_counter()
    random = np.random.RandomState(1)
    documents = np.tile(np.arange(INDEX_DOCUMENTS, dtype=np.int32), INDEX_EPOCHS)
    random.shuffle(documents)
    samples = helpers.build_sample_idx(sizes, documents, SEQ_LENGTH, INDEX_EPOCHS, INDEX_TOKENS, True, 1)
    shuffle = np.arange(len(samples) - 1, dtype=np.uint32)
    random.shuffle(shuffle)
    return {"seconds_of_functions": time.perf_counter() - start}


def _blend_weights() -> list[float]:
    return [float(weight) for weight in np.random.default_rng(5).random(BLEND_SETS) + 0.01]


def _ours_blend(_: str) -> dict[str, float]:
    start = time.perf_counter()
    from megatron_ds.data.blend_order import BlendOrder

    order = BlendOrder([Fraction(weight) for weight in _blend_weights()])
    order.locate(0)
    first = time.perf_counter() - start
    start = time.perf_counter()
    order.locate(BLEND_DRAWS - 1)
    last = time.perf_counter() - start
    start = time.perf_counter()
    sets = order.sets(BLEND_DRAWS)
    everything = time.perf_counter() - start
    counts = np.bincount(sets, minlength=BLEND_SETS)
    shares = np.array(_blend_weights()) / sum(_blend_weights())
    return {
        "seconds_to_first_draw": first,
        "seconds_to_last_draw": last,
        "seconds_of_all_draws": everything,
        "largest_error_of_counts": float(np.abs(counts - shares * BLEND_DRAWS).max()),
    }


def _core_blend(_: str) -> dict[str, float]:
    from megatron.core.datasets import helpers

    weights = np.array(_blend_weights()) / sum(_blend_weights())
    sets, samples = np.zeros(BLEND_DRAWS, np.int16), np.zeros(BLEND_DRAWS, np.int64)
    start = time.perf_counter()
    helpers.build_blending_indices(sets, samples, weights, BLEND_SETS, BLEND_DRAWS, False)
    seconds = time.perf_counter() - start
    counts = np.bincount(sets, minlength=BLEND_SETS)
    error = float(np.abs(counts - weights * BLEND_DRAWS).max())
    return {"seconds_of_all_draws": seconds, "largest_error_of_counts": error}


def _samples_per_second(batches: Sequence[Any] | Any, samples_per_batch: int, count: int) -> dict[str, float]:
    iterator = iter(batches)
    next(iterator)
    start = time.perf_counter()
    for _ in range(count):
        next(iterator)
    return {"samples_per_second": samples_per_batch * count / (time.perf_counter() - start)}


def _ours_loader(folder: str) -> dict[str, float]:
    from megatron_ds.data.batch import make_batch
    from megatron_ds.data.loader import global_batches

    train = _ours_dataset(f"{folder}/loader", LOADER_SAMPLES)
    sizes = {"micro_batch_size": 8, "global_batch_size": 8, "dp_rank": 0, "dp_size": 1}
    batches = global_batches(train, partial(make_batch, vocab_size=50257), consumed_samples=0, **sizes)
    return _samples_per_second(batches, 8, LOADER_SAMPLES // 8 - 1)


def _bare_loader(folder: str) -> dict[str, float]:
    """Random stretches of tokens, copied to int64: no documents, no batches."""
    tokens = np.memmap(f"{folder}/loader.bin", np.uint16, "r").view(np.ndarray)
    starts = np.random.default_rng(0).integers(0, len(tokens) - SEQ_LENGTH - 1, LOADER_SAMPLES).tolist()
    samples = (tokens[start : start + SEQ_LENGTH + 1].astype(np.int64) for start in starts)
    return _samples_per_second(samples, 1, LOADER_SAMPLES - 1)


_CHILDREN: dict[str, Callable[[str], dict[str, float]]] = {
    "ours-index": _ours_index,
    "core-index": _core_index,
    "ours-blend": _ours_blend,
    "core-blend": _core_blend,
    "ours-loader": _ours_loader,
    "bare-loader": _bare_loader,
}

PARTS: dict[str, Callable[[Path, int], None]] = {"index": _index, "blend": _blend, "loader": _loader}

if __name__ == "__main__":
    # A process that is measured: prints what it measured itself.
    print(json.dumps(_CHILDREN[sys.argv[1]](sys.argv[2])))
