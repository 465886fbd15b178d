"""Log-probabilities of given tokens, over all replicas of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.windows import Window
from megatron_ds.mpu import vocab_parallel_argmax, vocab_parallel_cross_entropy

# Targets whose scores over the vocabulary are in memory together.
_TARGETS_AT_ONCE = 1024


@dataclass(frozen=True)
class WindowScore:
    """What the targets of a window, or of several, came to.

    Attributes:
        log_probability: sum over the targets, in nats.
        num_targets: how many there are.
        num_right: those of them that are the likeliest token, the first of several.
    """

    log_probability: float = 0.0
    num_targets: int = 0
    num_right: int = 0

    def __add__(self, other: WindowScore) -> WindowScore:
        return WindowScore(
            self.log_probability + other.log_probability,
            self.num_targets + other.num_targets,
            self.num_right + other.num_right,
        )

    @property
    def all_right(self) -> bool:
        """Whether greedy decoding would give exactly the targets."""
        return self.num_right == self.num_targets


def score_windows(
    model: InferenceModel, windows: Sequence[Window], batch_size: int, advance: Callable[[int], object] = lambda _: None
) -> list[WindowScore]:
    """Scores the targets of all windows. Every rank of every replica calls it with the same arguments.

    A row is what it would be alone, up to rounding: shorter rows are filled up at their right end, which no token sees.
    What is not scored in a window is the prefix of a prefix-LM.

    Args:
        model: this rank's part of a replica.
        windows: the windows; each replica runs its share of them.
        batch_size: windows that a replica runs together.
        advance: called with the number of windows of each round of batches that was started.

    Returns:
        The scores in the order of the windows, on all ranks.

    Raises:
        CheckpointError: scores are not finite.
    """
    mpu = model.mpu
    # Rows of about one length together: less is filled up. The longest first: memory runs out at once or not at all.
    order = sorted(range(len(windows)), key=lambda place: -len(windows[place].tokens))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    results = torch.zeros(len(windows), 2, dtype=torch.float64, device=mpu.device)
    for first in range(0, len(batches), mpu.dp_size):
        own = first + mpu.dp_rank
        if own < len(batches):
            found = _score_batch(model, [windows[place] for place in batches[own]])
            if found is not None:
                results[batches[own]] = found
        advance(sum(map(len, batches[first : first + mpu.dp_size])))
    if mpu.dp_size > 1:
        # Each window was scored by one replica, and is zero in the others.
        dist.all_reduce(results, group=mpu.dp_group)
    results = model.from_last_stage(results, tuple(results.shape), results.dtype)
    if not results.isfinite().all():
        message = f"the model's scores are not finite in {str(model.dtype).removeprefix('torch.')}"
        raise CheckpointError(Problem(message, advice="give --dtype bf16 or fp32, or load an earlier checkpoint"))
    return [
        WindowScore(log_probability, window.num_targets, round(num_right))
        for window, (log_probability, num_right) in zip(windows, results.tolist(), strict=True)
    ]


def _score_batch(model: InferenceModel, windows: Sequence[Window]) -> Tensor | None:
    """Log-probability and number of right targets of each window, fp64 ``[B, 2]``, on the last stage."""
    device, longest = model.mpu.device, max(len(window.tokens) for window in windows)
    tokens = torch.tensor(
        [[*window.tokens, *[0] * (longest - len(window.tokens))] for window in windows], device=device
    )
    # Row and place of each target, [T].
    rows = torch.tensor([row for row, window in enumerate(windows) for _ in range(window.num_targets)], device=device)
    places = torch.tensor(
        [len(each.tokens) - each.num_targets + target for each in windows for target in range(each.num_targets)],
        device=device,
    )
    contexts = torch.tensor([len(window.tokens) - window.num_targets for window in windows], device=device)
    hidden = model.hidden(tokens[:, :-1], prefix=contexts)
    if hidden is None:
        return None
    # [S, B, H] -> [T, 1, H]: only the targets get scores over the vocabulary.
    wanted = hidden[places - 1, rows].unsqueeze(1)
    targets = tokens[rows, places].unsqueeze(1)
    result = torch.zeros(len(windows), 2, dtype=torch.float64, device=device)
    for first in range(0, len(rows), _TARGETS_AT_ONCE):
        part = slice(first, first + _TARGETS_AT_ONCE)
        result.index_add_(0, rows[part], _score_targets(model, wanted[part], targets[part]).double())
    return result


def _score_targets(model: InferenceModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target, and 1 where it is the likeliest token: ``[T, 1, H], [T, 1] -> [T, 2]``."""
    vocab_size = model.config.vocab_size
    assert vocab_size is not None
    with torch.inference_mode():
        logits = model.head(hidden)
        losses = vocab_parallel_cross_entropy(logits, targets, vocab_size, model.mpu)
        is_right = vocab_parallel_argmax(logits, vocab_size, model.mpu) == targets
    return torch.cat([-losses, is_right.float()], dim=1)
