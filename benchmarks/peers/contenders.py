"""Who takes part, and who can't take part in what. Imports neither torch nor a peer before one is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.peers.workload import Contender, Workload
from megatron_ds.config import ResolvedRun
from megatron_ds.config.blocks import ModelConfig

Build = Callable[[Workload, ResolvedRun], Contender]


@dataclass(frozen=True)
class Entry:
    """One contender.

    Attributes:
        build: makes it, in each process of its world.
        modules: that must be installed.
        stages: ZeRO stages of the layouts that it is run beside; `plain` shards nothing.
        max_tp: largest tensor-parallel size; peers but Megatron core have none.
        max_pp: the same for pipeline stages.
        needs_cuda: it does not run on a CPU.
        refuses: why it has no such model; None when it has one.
    """

    build: Build
    modules: tuple[str, ...] = ()
    stages: tuple[int, ...] = (0, 1, 2, 3)
    max_tp: int = 1
    max_pp: int = 1
    needs_cuda: bool = False
    refuses: Callable[[ModelConfig], str | None] = lambda _: None

    def reason_to_skip(self, workload: Workload) -> str | None:
        """Why there is nothing to run, as far as that is known without a process; None when there is."""
        for module in self.modules:
            if not _is_installed(module):
                return f"{module} is not installed"
        cut = workload.cut
        if cut.tp > self.max_tp or cut.pp > self.max_pp:
            return f"it is not run with tensor-parallel size {cut.tp} and {cut.pp} pipeline stages"
        if cut.zero not in self.stages:
            return f"it is not run with ZeRO stage {cut.zero}"
        return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent isn't
        return False


def _ours(workload: Workload, resolved: ResolvedRun) -> Contender:
    from benchmarks.peers.ours import Ours

    return Ours(workload, resolved)


def _plain(workload: Workload, resolved: ResolvedRun) -> Contender:
    from benchmarks.peers.plain_step import PlainStep

    return PlainStep(workload, resolved)


def _plain_deepspeed(workload: Workload, resolved: ResolvedRun) -> Contender:
    from benchmarks.peers.deepspeed_step import DeepSpeedStep

    return DeepSpeedStep(workload, resolved)


def _hf_deepspeed(workload: Workload, resolved: ResolvedRun) -> Contender:
    from benchmarks.peers.hugging_face import HuggingFaceStep

    return HuggingFaceStep(workload, resolved)


def _megatron_core(workload: Workload, resolved: ResolvedRun) -> Contender:
    from benchmarks.peers.megatron_core import MegatronCoreStep

    return MegatronCoreStep(workload, resolved)


def _not_plain(config: ModelConfig) -> str | None:
    from benchmarks.peers.plain import unsupported

    return unsupported(config)


def _not_hugging_face(config: ModelConfig) -> str | None:
    from benchmarks.peers.hugging_face import unsupported

    return unsupported(config)


def _not_megatron_core(config: ModelConfig) -> str | None:
    from benchmarks.peers.megatron_core import unsupported

    return unsupported(config)


_ANY = 1 << 30
CONTENDERS: Mapping[str, Entry] = {
    "ours": Entry(_ours, max_tp=_ANY, max_pp=_ANY),
    "plain": Entry(_plain, stages=(0, 1), refuses=_not_plain),
    # Its tied head reads the word embeddings outside of their module, where ZeRO-3 has taken them away.
    "plain_deepspeed": Entry(_plain_deepspeed, stages=(1, 2), refuses=_not_plain),
    "hf_deepspeed": Entry(_hf_deepspeed, modules=("transformers",), stages=(1, 2, 3), refuses=_not_hugging_face),
    "megatron_core": Entry(
        _megatron_core,
        modules=("megatron.core",),
        stages=(1,),
        max_tp=_ANY,
        needs_cuda=True,
        refuses=_not_megatron_core,
    ),
}
