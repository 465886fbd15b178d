"""What layers compute in."""

from __future__ import annotations

import torch

# By the name of a run's precision.
COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
