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

from megatron_ds.data.data_path import BlendPart, parse_split
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
    shares = parse_split(split)
    first, end = BlendPart(prefix, end=shares[0] / sum(shares)).documents(corpus.num_documents)
    return corpus.tokens[corpus.document_start(first) : corpus.document_start(end)]


def main(run: Path) -> int:
    """Prints the report on a run's folder; returns the exit code."""
    config = json.loads((run / "run_config.json").read_text(encoding="utf-8"))
    data = config["data"]
    (prefix,) = data["data_path"]
    entropy = unigram_entropy(training_tokens(prefix, data["split"]))
    _, validation = losses_of(read_metrics(run / METRICS_FILE))
    step, loss = validation[-1]

    print(plot_file(run, levels={"unigram entropy": entropy}))
    print(f"\nvalidation loss {loss:.3f} after {step} steps", end="")
    print(f" = {loss / entropy:.2f} x unigram entropy {entropy:.3f} (the aim: at most {MOST})")
    print(_where_things_lie(run, data))
    print(_what_next(config, prefix))
    if loss > MOST * entropy:
        print(f"\nThe validation loss is above {MOST} x the unigram entropy: this run has not learnt.", file=sys.stderr)
        return 1
    return 0


def _where_things_lie(run: Path, data: dict[str, Any]) -> str:
    places = {
        f"{data['data_path'][0]}.bin, .idx": "the tokens",
        data["tokenizer_name_or_path"]: "the tokenizer",
        f"{run}/global_step*/": "the checkpoints; the file `latest` beside them names the last one",
        f"{run}/metrics.jsonl": "the numbers of the curve",
        f"{run}/run_config.json": "every option of the run; deepspeed_config.json: what DeepSpeed got",
    }
    width = max(map(len, places))
    return "\n".join(["\nWhere things lie", *(f"  {place:<{width}}  {what}" for place, what in places.items())])


def _what_next(config: dict[str, Any], prefix: str) -> str:
    parallel = config["parallel"]
    tp_size, pp_size = parallel["tensor_model_parallel_size"], parallel["pipeline_model_parallel_size"]
    return f"""
Try next (first `. .venv/bin/activate`, if stage 1 made that)
  Where does each option come from?
    deepspeed --num_gpus {tp_size * pp_size} pretrain_gpt.py --deepspeed_config configs/runs/gpt_tiny_tp2_pp2.json \\
        --tensor-model-parallel-size {tp_size} --pipeline-model-parallel-size {pp_size} --data-path {prefix} \\
        --tokenizer-type HFTokenizer --tokenizer-name-or-path {config["data"]["tokenizer_name_or_path"]} \\
        --print-config
  Train longer: --train-iters 1000 --save NEW_RUN instead of --print-config
  Your own text: docs/data.md. Larger models: configs/runs/. All options: docs/config.md"""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
