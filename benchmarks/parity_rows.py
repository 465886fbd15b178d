"""The rows of `benchmarks.parity`: layouts and options that are compared with one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.tiny_run import DOCUMENT_FLAGS, EOD_ID, MODELS, Case

LAYOUTS = (
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (1, 1, 2),
    (2, 2, 1),
    (2, 1, 2),
    (1, 2, 2),
    (2, 2, 2),
    (4, 1, 1),
    (1, 4, 1),
)


def _rows(flags: tuple[str, ...], *cases: Case) -> list[Case]:
    return [replace(case, more=(*flags, *case.more)) for case in cases]


# Every legal pair of two values stands in some row: of tp, pp, dp, zero, precision, tied, micro_batch_size, recompute;
# and so does every layout with both precisions.
COVERING_SET = (
    Case(1, 1, 1, 2, "fp32", False, 2, False),
    Case(1, 1, 1, 1, "bf16", False, 4, False),
    Case(2, 1, 1, 0, "fp32", True, 4, False),
    Case(2, 1, 1, 3, "bf16", False, 4, True),
    Case(1, 2, 1, 0, "fp32", False, 4, False),
    Case(1, 2, 1, 1, "bf16", False, 1, True),
    Case(1, 1, 2, 1, "fp32", False, 2, False),
    Case(1, 1, 2, 3, "bf16", True, 1, True),
    Case(2, 2, 1, 0, "fp32", False, 1, True),
    Case(2, 2, 1, 1, "bf16", True, 4, True),
    Case(2, 1, 2, 2, "fp32", True, 1, True),
    Case(2, 1, 2, 3, "bf16", True, 2, False),
    Case(1, 2, 2, 0, "fp32", True, 4, False),
    Case(1, 2, 2, 1, "bf16", False, 4, True),
    Case(2, 2, 2, 1, "fp32", False, 2, False),
    Case(2, 2, 2, 1, "bf16", False, 1, False),
    Case(4, 1, 1, 0, "fp32", True, 1, True),
    Case(4, 1, 1, 3, "fp32", False, 2, True),
    Case(4, 1, 1, 1, "bf16", False, 4, False),
    Case(4, 1, 1, 2, "bf16", False, 4, False),
    Case(1, 4, 1, 0, "fp32", True, 2, True),
    Case(1, 4, 1, 1, "bf16", False, 1, False),
    Case(1, 4, 1, 1, "bf16", False, 4, False),
)

# Documents that don't see each other: every switch alone and all together, both engines, every ZeRO stage.
DOCUMENT_SET = (
    *_rows(
        DOCUMENT_FLAGS,
        Case(2, 1, 1, 0, "fp32", True, 4, True),
        Case(1, 2, 1, 0, "fp32", True, 4, False),
        Case(1, 2, 1, 1, "fp32", False, 1, True),
        Case(1, 1, 2, 1, "fp32", True, 2, False),
        Case(1, 1, 2, 2, "fp32", False, 1, True),
        Case(2, 1, 1, 3, "fp32", True, 2, True),
        Case(1, 1, 2, 3, "fp32", True, 1, False),
        Case(2, 2, 1, 1, "fp32", True, 2, True),
        Case(1, 2, 1, 1, "bf16", True, 2, False),
    ),
    Case(1, 2, 1, 1, "fp32", True, 2, True, more=("--eod-id", str(EOD_ID), "--reset-position-ids")),
    Case(1, 2, 1, 1, "fp32", True, 2, True, more=("--eod-id", str(EOD_ID), "--reset-attention-mask")),
    Case(1, 2, 1, 1, "fp32", True, 1, False, more=("--eod-id", str(EOD_ID), "--eod-mask-loss")),
)


# Every model with a tensor-parallel pipeline, with a stage of ZeRO that has none, and in bf16.
MODEL_SET = (
    *_rows(
        MODELS["Llama 3.1"],
        Case(2, 2, 1, 1, "fp32", False, 2, True),
        Case(2, 1, 1, 0, "fp32", False, 4, False),
        # Four ranks share two heads of keys and values.
        Case(4, 1, 1, 2, "fp32", False, 2, True),
        Case(1, 1, 2, 3, "fp32", False, 2, True),
        Case(2, 1, 1, 1, "bf16", False, 4, False),
        Case(1, 2, 1, 1, "fp32", False, 2, False, more=DOCUMENT_FLAGS),
    ),
    *_rows(
        MODELS["BLOOM"],
        Case(2, 2, 1, 1, "fp32", True, 2, False),
        Case(2, 1, 1, 3, "fp32", True, 4, True),
        Case(1, 2, 1, 1, "bf16", True, 2, False),
        Case(2, 1, 1, 0, "fp32", True, 2, False, more=DOCUMENT_FLAGS),
    ),
    *_rows(
        MODELS["Pythia"],
        Case(2, 2, 1, 1, "fp32", False, 4, True),
        Case(1, 1, 2, 2, "fp32", False, 2, False),
        Case(1, 2, 1, 1, "bf16", False, 2, True),
    ),
    *_rows(
        MODELS["GLM"],
        Case(2, 2, 1, 1, "fp32", True, 2, False),
        Case(2, 1, 1, 2, "fp32", True, 4, True),
        # Xavier's weights are ten times as large, and so are bf16's steps from one to the next.
        Case(1, 2, 1, 1, "bf16", True, 4, False, more=("--init-method", "normal")),
    ),
    *_rows(
        MODELS["Qwen"],
        Case(2, 2, 1, 1, "fp32", False, 4, False),
        Case(4, 1, 1, 0, "fp32", False, 2, True),
        Case(2, 1, 1, 3, "fp32", False, 2, False),
        Case(1, 2, 1, 1, "bf16", False, 8, True),
    ),
    *_rows(
        MODELS["Mistral"],
        Case(2, 2, 1, 1, "fp32", True, 2, True),
        Case(1, 1, 2, 3, "fp32", True, 4, False),
        Case(2, 1, 1, 2, "bf16", True, 2, False),
        Case(1, 2, 1, 0, "fp32", True, 2, True, more=DOCUMENT_FLAGS),
    ),
    *_rows(
        MODELS["OPT"],
        Case(2, 2, 1, 1, "fp32", True, 4, False),
        Case(1, 1, 2, 2, "fp32", True, 2, True),
        # Of the same matrix products: where bf16 rounds other partial sums, ReLU's slope jumps as one changes its sign.
        Case(1, 2, 1, 1, "bf16", True, 8, True),
    ),
    *_rows(
        MODELS["post-LN"],
        Case(2, 2, 1, 1, "fp32", True, 2, True),
        Case(2, 1, 1, 3, "fp32", True, 2, False),
        Case(1, 2, 1, 1, "bf16", True, 4, False),
    ),
    *_rows(
        MODELS["ALiBi, window"],
        Case(2, 2, 1, 0, "fp32", False, 2, False),
        Case(4, 1, 1, 3, "fp32", False, 4, True),
        Case(1, 1, 2, 1, "bf16", False, 2, False),
        Case(1, 2, 1, 1, "fp32", False, 2, False, more=DOCUMENT_FLAGS),
    ),
    *_rows(
        MODELS["prefix-LM"],
        Case(2, 2, 1, 1, "fp32", True, 2, True),
        Case(1, 1, 2, 3, "fp32", False, 1, False),
        Case(2, 1, 1, 1, "bf16", True, 4, False),
    ),
    *_rows(
        MODELS["prefix-LM, ALiBi"],
        Case(2, 2, 1, 0, "fp32", True, 2, False),
        Case(2, 1, 1, 2, "fp32", True, 4, True),
        Case(1, 2, 1, 1, "bf16", True, 1, False),
    ),
    *_rows(
        MODELS["SiLU"],
        Case(2, 2, 1, 1, "bf16", True, 2, True),
        Case(2, 1, 1, 3, "bf16", True, 4, False),
        Case(2, 1, 1, 2, "fp32", True, 2, False),
    ),
)

# Sequence parallelism with every kind of norm, bias and position, both engines, every ZeRO stage.
SEQUENCE_SET = tuple(
    replace(case, more=(*case.more, "--sequence-parallel"))
    for case in (
        Case(2, 1, 1, 0, "fp32", True, 4, False),
        Case(2, 1, 1, 1, "fp32", False, 2, True),
        Case(2, 1, 1, 2, "fp32", True, 2, False),
        Case(2, 1, 1, 3, "fp32", False, 4, True),
        Case(2, 2, 1, 1, "fp32", True, 2, True),
        Case(2, 2, 1, 0, "fp32", True, 4, False),
        Case(2, 1, 2, 3, "fp32", True, 2, False),
        Case(4, 1, 1, 2, "fp32", False, 2, True),
        Case(2, 2, 1, 1, "bf16", True, 4, True),
        Case(2, 1, 1, 3, "bf16", False, 2, False),
        Case(2, 2, 1, 1, "fp32", True, 2, True, more=DOCUMENT_FLAGS),
        *_rows(MODELS["Llama 3.1"], Case(2, 2, 1, 1, "fp32", False, 2, True)),
        *_rows(MODELS["Qwen"], Case(4, 1, 1, 0, "fp32", False, 4, False)),
        *_rows(MODELS["BLOOM"], Case(2, 1, 1, 3, "fp32", True, 2, True)),
        *_rows(MODELS["post-LN"], Case(2, 2, 1, 1, "fp32", True, 2, False)),
        *_rows(MODELS["SiLU"], Case(2, 2, 1, 1, "bf16", True, 4, True)),
        *_rows(MODELS["Mistral"], Case(2, 1, 1, 1, "fp32", True, 4, False, more=DOCUMENT_FLAGS)),
    )
)


def full_set() -> Iterator[Case]:
    """Every layout with every ZeRO stage and precision that is legal there; the other options take turns."""
    for tp, pp, dp in LAYOUTS:
        for zero in range(4 if pp == 1 else 2):
            for precision in ("fp32", "bf16") if zero > 0 else ("fp32",):
                for tied in (True, False):
                    turn = tp + pp + dp + zero + tied
                    yield Case(tp, pp, dp, zero, precision, tied, (1, 2, 4)[turn % 3], turn % 2 == 0)
