"""Options of parallelism."""

from __future__ import annotations

from typing import Literal

from megatron_ds.config.blocks.bounds import MOST_RANKS
from megatron_ds.config.option import OptionBlock, option


class ParallelConfig(OptionBlock):
    """How the model and the batch are spread over processes."""

    tensor_model_parallel_size: int = option(
        1, "Processes that share each layer (TP).", aliases=("--model-parallel-size",), ge=1, le=MOST_RANKS
    )
    pipeline_model_parallel_size: int = option(
        1, "Pipeline stages (PP).", aliases=("--pipe-parallel-size",), ge=1, le=MOST_RANKS
    )
    sequence_parallel: bool = option(
        False,
        "Cuts activations between tensor-parallel layers along the sequence, over the TP ranks: the same numbers in "
        "less memory.",
    )
    zero_stage: Literal[0, 1, 2, 3] | None = option(
        None,
        "DeepSpeed ZeRO stage. Not given: 0 for fp32 without a pipeline, else 1. Stages 2 and 3 need a pipeline size "
        "of 1.",
    )
    pp_partition_method: str = option(
        "type:transformer",
        "How layers are dealt to pipeline stages: `type:REGEX` (even counts of layers whose class name matches), "
        "`parameters` (even sums), `uniform` (even counts of all layers, embeddings and head too), or the number of "
        "transformer layers of each stage, `layers:3,5,5,3`, of which the first and the last may be 0.",
    )
    distributed_timeout_minutes: float = option(
        10.0, "How long a collective may wait before the run ends.", ge=0.1, le=10**5
    )


def default_zero_stage(precision: str, pp_size: int) -> int:
    """The ZeRO stage in force when none is given: 0 for fp32 without a pipeline, else 1."""
    return 0 if precision == "fp32" and pp_size == 1 else 1
