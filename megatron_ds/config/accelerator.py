"""Tells whether a run will be on CPU, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Device nodes of the accelerators that DeepSpeed can drive: NVIDIA (also Tegra and WSL), AMD, Habana, Ascend.
_DEVICE_NODES = ("nvidia[0-9]*", "nvgpu*", "nvhost-gpu", "dxg", "kfd", "accel/accel*", "hl[0-9]*", "davinci[0-9]*")


def accelerator_is_cpu(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tells whether this run will compute on CPU, as far as that shows without torch.

    DeepSpeed takes the accelerator from ``DS_ACCELERATOR``, else from what torch finds. What torch will find can't be
    known here; a machine without a device node has nothing to find. So True is certain, and False means "there seems to
    be an accelerator": a CPU build of torch on a GPU machine is found out later, by DeepSpeed.

    Args:
        environ: the environment.
        devices: the folder of device nodes.

    Returns:
        True when the run will be on CPU.
    """
    chosen = environ.get("DS_ACCELERATOR")
    if chosen:
        return chosen.lower() == "cpu"
    nodes = [node for pattern in _DEVICE_NODES for node in devices.glob(pattern)]
    only_nvidia = all(node.name.startswith("nv") or node.name == "dxg" for node in nodes)
    hidden = environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return not nodes or (only_nvidia and hidden)
