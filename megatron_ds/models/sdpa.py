"""Attention through PyTorch's `scaled_dot_product_attention`, and which of its kernels computes it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# What one of these words stands for.
_CHOICES = {
    "auto": tuple(_BACKENDS),
    # Texts that grow have a new length at every step, and cuDNN plans anew for each.
    "inference": ("flash", "efficient", "math"),
}


class SdpaAttention:
    """Causal attention, with or without a mask.

    Args:
        backend: one of `_BACKENDS`, which alone may be used; or ``auto``: on CUDA the first of them that takes the
            dtype, the shapes and the mask. cuDNN's forward and backward took 0.5 to 0.63 of flash's time on an H200. Or
            ``inference``: the same of those that need nothing for a new length.
        device: where attention runs; PyTorch chooses by itself on a CPU.
    """

    def __init__(self, backend: str, device: torch.device) -> None:
        self.candidates = _CHOICES.get(backend, (backend,))
        self._is_cuda = device.type == "cuda"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
        """``[B, N/tp, S, D]`` from queries of that shape, and keys and values ``[B, G/tp, S, D]``.

        Args:
            query: the queries.
            key: the keys.
            value: the values.
            mask: None where all tokens before a token count alike; else bool, or what is added to the scores,
                ``[1 or B, 1 or N/tp, S, S]``.
            dropout: share of the probabilities that are dropped.
        """
        shared = query.shape[1] != key.shape[1]
        if shared and mask is not None:
            # The kernels that take a mask don't know shared heads; without this, SDPA falls back to its slow path.
            key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
            shared = False
        options = {"enable_gqa": True} if shared else {}
        with self._kernels():
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, **options
            )

    def _kernels(self) -> AbstractContextManager[None]:
        if not self._is_cuda:
            return nullcontext()
        return sdpa_kernel([_BACKENDS[name] for name in self.candidates], set_priority=True)

    def kernel_for(self, query: Tensor, key: Tensor, mask: Tensor | None, dropout: float) -> str | None:
        """The name of the kernel that such a call would use on CUDA; None when there is none.

        Args:
            query: ``[B, N/tp, S, D]``; only its dtype and shape matter.
            key: ``[B, G/tp, S, D]``.
            mask: as in a call.
            dropout: as in a call.
        """
        if mask is not None:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        shared = query.shape[1] != key.shape[1]
        parameters = torch.backends.cuda.SDPAParams(query, key, key, mask, dropout, mask is None, shared)
        usable = {
            "cudnn": torch.backends.cuda.can_use_cudnn_attention,
            "flash": torch.backends.cuda.can_use_flash_attention,
            "efficient": torch.backends.cuda.can_use_efficient_attention,
            "math": lambda _: True,
        }
        return next((name for name in self.candidates if usable[name](parameters)), None)
