"""The speed and the loss of whole runs of pretrain_gpt.py on one GPU, on real text. Prints JSON lines.

    python benchmarks/baseline.py --data-path corpus_text_document

Each case is one process of its own, as a user would start it. Speed is the median over the log lines after the first
quarter of the run, so compilation of kernels and the allocator's warm-up are left out. MFU = 72 B s l h^2 (1 + s/6h +
V/12lh) FLOPs over the GPU's dense bf16 peak (docs/performance.md).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.training.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
LOG_INTERVAL = 1


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        preset: model preset.
        micro_batch_size: samples in one forward pass.
        global_batch_size: samples in one step.
        options: further flags.
    """

    preset: str
    micro_batch_size: int
    global_batch_size: int
    options: tuple[str, ...] = ()


LLAMA_STYLE = (
    *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--activation", "swiglu"),
    *("--ffn-hidden-size", "5504", "--num-query-groups", "4"),
    *("--disable-bias-linear", "--untie-embeddings-and-output-weights"),
)
BLOOM_STYLE = ("--position-embedding-type", "alibi", "--embed-layernorm")

CASES = {
    "llama_style_1p3b": Case("gpt2_1p3b", 8, 32, LLAMA_STYLE),
    "bloom_style_1p3b": Case("gpt2_1p3b", 8, 32, BLOOM_STYLE),
    "documents_1p3b": Case("gpt2_1p3b", 8, 32, ("--eod-id", "50256", "--reset-attention-mask", "--reset-position-ids")),
    "gpt2_125m": Case("gpt2_125m", 16, 64),
    "gpt2_1p3b": Case("gpt2_1p3b", 8, 32),
    "sc21_1p7b": Case("sc21_1p7b", 8, 16),
    "sc21_1p7b_recompute": Case("sc21_1p7b", 16, 32, ("--checkpoint-activations",)),
}


def run_case(name: str, case: Case, data_path: str, steps: int) -> dict[str, object]:
    """Trains for `steps` steps and reads the run's own metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, str(ROOT / "pretrain_gpt.py")),
            *("--deepspeed_config", "zero1_bf16", "--model-preset", case.preset),
            *("--vocab-size", "50257", "--hidden-dropout", "0", "--attention-dropout", "0"),
            *("--micro-batch-size", str(case.micro_batch_size), "--global-batch-size", str(case.global_batch_size)),
            *(
                "--train-iters",
                str(steps),
                "--lr",
                "3e-4",
                "--lr-warmup-iters",
                "10",
                "--log-interval",
                str(LOG_INTERVAL),
            ),
            *("--data-path", data_path, "--split", "95,5,0", "--eval-iters", "2", "--eval-interval", str(steps)),
            *("--save", folder, "--data-cache-path", f"{folder}/cache", *case.options),
        ]
        started = time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if result.returncode:
            return {"case": name, "error": result.stderr[-2000:], "exit_code": result.returncode}
        records = read_metrics(Path(folder) / "metrics.jsonl")
    train = [record for record in records if "lm_loss" in record]
    timed = [record for record in train if record["step"] > steps // 4]
    return {
        "case": name,
        "steps": steps,
        "micro_batch_size": case.micro_batch_size,
        "global_batch_size": case.global_batch_size,
        "step_seconds": round(statistics.median(record["step_seconds"] for record in timed), 4),
        "tokens_per_second": round(statistics.median(record["tokens_per_second"] for record in timed)),
        "mfu": round(statistics.median(record["mfu"] or 0.0 for record in timed), 4),
        "peak_memory_gib": timed[-1]["peak_memory_gib"],
        "losses": {record["step"]: round(record["lm_loss"], 4) for record in train},
        "valid_loss": next((round(record["loss"], 4) for record in records if "split" in record), None),
        "whole_run_seconds": round(seconds, 1),
    }


def main() -> None:
    """Runs the chosen cases one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-path", required=True, help="prefix of .bin/.idx files")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["gpt2_125m", "gpt2_1p3b"])
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    for name in arguments.cases:
        print(json.dumps(run_case(name, CASES[name], arguments.data_path, arguments.steps)), flush=True)


if __name__ == "__main__":
    main()
