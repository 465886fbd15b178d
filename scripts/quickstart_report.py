"""What the quickstart's run has learnt: its loss curve beside the entropy of the tokens, and where to go on.

    python scripts/quickstart_report.py RUN

A model that only knows how often each token occurs can't do better than the unigram entropy. Ends with exit code 1
when the validation loss is not clearly below that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.data_path import document_ranges, parse_split
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.training.metrics import METRICS_FILE, read_metrics
from megatron_ds.training.plot import losses_of, plot_file

# The validation loss has to be at most this share of the unigram entropy.
MOST = 0.85


def unigram_entropy(tokens: NDArray[Any]) -> float:
    """Entropy of the frequencies of the tokens: -sum of p ln p, in nats per token.

    Args:
        tokens: ids from 0, [number of tokens], at least one.
    """
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def training_tokens(prefix: str, split: str) -> NDArray[Any]:
    """The tokens of the documents that the training split of a corpus has."""
    corpus = IndexedDataset(prefix)
    first, end = document_ranges(parse_split(split), corpus.num_documents)["train"]
    return corpus.tokens[corpus.document_start(first) : corpus.document_start(end)]


def main(run: Path) -> int:
    """Prints the report on a run's folder; returns the exit code."""
    data = json.loads((run / "run_config.json").read_text(encoding="utf-8"))["data"]
    (prefix,) = data["data_path"]
    entropy = unigram_entropy(training_tokens(prefix, data["split"]))
    _, validation = losses_of(read_metrics(run / METRICS_FILE))
    step, loss = validation[-1]

    print(plot_file(run, levels={"unigram entropy": entropy}, width=100))
    print(f"""
validation loss {loss:.3f} after {step} steps = {loss / entropy:.2f} x unigram entropy {entropy:.3f} (at most {MOST})

{prefix}.bin, .idx   the tokens
{data["tokenizer_name_or_path"]}   the tokenizer
{run}/latest   names the last checkpoint, a folder beside it
{run}/metrics.jsonl   the numbers of the curve
{run}/run_config.json, deepspeed_config.json   every option of the run

Try next, in the environment that stage 1 found or made (`. .venv/bin/activate`):
  python pretrain_gpt.py --deepspeed_config gpt_tiny_tp2_pp2 --print-config --data-path {prefix} --save new_run
      shows where each value comes from; the run's JSON is configs/runs/gpt_tiny_tp2_pp2.json
  your own text: megatron-ds preprocess --help, and docs/data.md
  a larger model: configs/runs/gpt2_125m.json and up; all options: docs/config.md""")
    if loss > MOST * entropy:
        print(f"\nThe validation loss is above {MOST} x the unigram entropy: this run has not learnt.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
