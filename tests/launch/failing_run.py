"""`pretrain_gpt.py` in which one rank fails: the first argument says where.

Started by the launchers in `test_failures`. The failures are put in from outside, so that the product has no hook for
them.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

FAILING_RANK = 1


class BrokenPartError(Exception):
    """What the failing rank raises."""


def _fail_in_backward() -> None:
    """Raises inside autograd in the second optimizer step, while the other stage waits for gradients."""
    import torch

    from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
    from megatron_ds.models import ParallelTransformerLayer

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.view_as(hidden)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            loaded = "torch._inductor.select_algorithm" in sys.modules
            raise BrokenPartError(f"in backward, torch.compile's backend loaded: {loaded}")

    steps = []
    train_step, forward = DeepSpeedEngineBase.train_step, ParallelTransformerLayer.forward

    def counted_step(engine: Any, batches: Any) -> Any:
        steps.append(None)
        return train_step(engine, batches)

    def broken_forward(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        output = forward(layer, hidden)
        return Broken.apply(output) if len(steps) == 2 else output

    DeepSpeedEngineBase.train_step = counted_step  # type: ignore[method-assign]
    ParallelTransformerLayer.forward = broken_forward  # type: ignore[method-assign]


def _fail_in_evaluation() -> None:
    """Raises one of our errors, while the other rank waits for the loss."""
    from megatron_ds.errors import DataError
    from megatron_ds.training import pretrain

    def broken(*arguments: Any) -> dict[str, float]:
        raise DataError("broken in evaluation")

    pretrain.mean_losses = broken


def _nan_in_loss() -> None:
    """Makes this rank's loss NaN in the third optimizer step."""
    from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
    from megatron_ds.models import GptLoss

    steps = []
    train_step, loss = DeepSpeedEngineBase.train_step, GptLoss.__call__

    def counted_step(engine: Any, batches: Any) -> Any:
        steps.append(None)
        return train_step(engine, batches)

    def broken_loss(self: Any, logits: Any, targets: Any) -> Any:
        return loss(self, logits, targets) * (float("nan") if len(steps) == 3 else 1.0)

    DeepSpeedEngineBase.train_step = counted_step  # type: ignore[method-assign]
    GptLoss.__call__ = broken_loss  # type: ignore[method-assign]


def _end_by_signal(number: signal.Signals) -> None:
    """Gets a signal before the second step, as from a scheduler or a user."""
    from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase

    train_step = DeepSpeedEngineBase.train_step

    def ending_step(engine: Any, batches: Any) -> Any:
        if engine.progress.step == 1:
            os.kill(os.getpid(), number)
        return train_step(engine, batches)

    DeepSpeedEngineBase.train_step = ending_step  # type: ignore[method-assign]


def _killed_while_saving() -> None:
    """Is killed inside the first file of the second checkpoint."""
    from megatron_ds.checkpoint.hashed_file import HashedFile

    write = HashedFile.write

    def killed(file: HashedFile, piece: bytes | memoryview) -> int:
        size = write(file, piece)
        if (file.path.parent.parent / "latest").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return size

    HashedFile.write = killed  # type: ignore[method-assign]


_KINDS = {
    "fail=backward": _fail_in_backward,
    "fail=evaluation": _fail_in_evaluation,
    "fail=nan": _nan_in_loss,
    "fail=terminated": partial(_end_by_signal, signal.SIGTERM),
    "fail=killed_while_saving": _killed_while_saving,
}


def main() -> None:
    kind = sys.argv.pop(next(i for i, word in enumerate(sys.argv) if word.startswith("fail=")))
    from megatron_ds.engine import distributed

    start = distributed.start_distributed

    def start_then_break(*arguments: Any) -> Any:
        device = start(*arguments)
        if int(os.environ["RANK"]) == FAILING_RANK:
            # DeepSpeed may be imported now.
            _KINDS[kind]()
        return device

    distributed.start_distributed = start_then_break
    from megatron_ds.cli.pretrain import main as pretrain

    pretrain()


if __name__ == "__main__":
    main()
