"""What stands in files of Megatron and its forks beside tensors and plain values, and what is made of it.

Nothing of it is imported: a name in a file becomes one of the classes here, which do nothing. The list is what the
projects' `save_checkpoint` puts into a file: arguments with enums, states of random generators, loss scalers.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from itertools import product
from typing import Any

from megatron_ds.checkpoint.safe_load import Attributes


class Stub(Attributes):
    """Stands for an object that nobody reads. It takes any state, which may be no dict, and drops it."""

    # Unpickling may leave the constructor out.
    arguments: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        """Drops the state."""


class EnumMember(Stub):
    """A member of an enum, whatever its class."""

    @property
    def value(self) -> Any:
        """The member's value, or its name where that is what was stored."""
        return self.arguments[0] if self.arguments else None


class EnumMemberByName(EnumMember):
    """``getattr(SomeEnum, "NAME")``, as some versions of Python store members.

    Looks nothing up: the name is the value.
    """

    def __init__(self, owner: Any, name: Any) -> None:  # noqa: ARG002
        super().__init__(name)


_ENUM_MODULES = (
    "megatron.enums",
    "megatron.model.enums",
    "megatron.legacy.model.enums",
    "megatron.core.enums",
    "megatron.core.transformer.enums",
)
_ENUMS = (
    "PositionEmbeddingType",
    "LayerType",
    "AttnType",
    "AttnMaskType",
    "AttnBackend",
    "ModelType",
    "Fp8Recipe",
    "Fp4Recipe",
    "CudaGraphScope",
)
_OTHER_ENUMS = (
    "signal.Signals",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "megatron.core.rerun_state_machine.RerunMode",
    "megatron.core.rerun_state_machine.RerunState",
    "megatron.core.rerun_state_machine.RerunDiagnostic",
)
_LOSS_SCALERS = ("fp16.loss_scaler", "megatron.fp16.loss_scaler", "deepspeed.runtime.fp16.loss_scaler")
_STUBS = (
    # State of NumPy's random generator, and numbers that came out of NumPy.
    *(f"{module}.multiarray.{name}" for module in ("numpy.core", "numpy._core") for name in ("_reconstruct", "scalar")),
    "numpy.ndarray",
    "numpy.dtype",
    "_codecs.encode",
    # `_extra_state` of Transformer Engine.
    "_io.BytesIO",
    "datetime.timedelta",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    *(f"{module}.{name}" for module in _LOSS_SCALERS for name in ("LossScaler", "DynamicLossScaler")),
)

ALLOWED: Mapping[str, type] = {
    "argparse.Namespace": Namespace,
    "builtins.getattr": EnumMemberByName,
    **{f"{module}.{name}": EnumMember for module, name in product(_ENUM_MODULES, _ENUMS)},
    **dict.fromkeys(_OTHER_ENUMS, EnumMember),
    **dict.fromkeys(_STUBS, Stub),
}
