"""`ModelParallelUnit`: where this process sits, and the process groups around it.

An object, not a module of globals: layers get it as an argument. The methods carry Megatron's names, which
DeepSpeed calls on the ``mpu`` that it is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from megatron_ds.mpu.random import TensorParallelRng, derive_seed
from megatron_ds.mpu.topology import Axis, Topology

Group = dist.ProcessGroup


@dataclass(frozen=True)
class ModelParallelUnit:
    """This rank's place in the grid, with its groups. Build it with `create`, or `offline` without processes.

    Attributes:
        topology: the whole grid.
        global_rank: this process's rank.
        device: the device this rank computes on.
        tp_group: the ranks that share each layer with this one; None offline, as the other groups.
        pp_group: the stages of this rank's pipeline.
        dp_group: the ranks that hold the same weights.
        model_parallel_group: the ranks that hold one copy of the model between them (TP x PP).
        sequence_parallel: between split layers, the ranks of `tp_group` have a slice of the sequence each.
        rng: the stream of random numbers that differs over `tp_group`.
    """

    topology: Topology
    global_rank: int
    device: torch.device
    tp_group: Group | None = None
    pp_group: Group | None = None
    dp_group: Group | None = None
    model_parallel_group: Group | None = None
    sequence_parallel: bool = False
    rng: TensorParallelRng = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Makes the random stream, which only the rank and the device determine."""
        object.__setattr__(self, "rng", TensorParallelRng(self.device))

    @classmethod
    def create(
        cls,
        tp_size: int,
        pp_size: int,
        device: torch.device,
        timeout: timedelta = timedelta(minutes=10),
        *,
        sequence_parallel: bool = False,
    ) -> ModelParallelUnit:
        """Makes all groups. Every rank must call this, after ``init_process_group``.

        Args:
            tp_size: tensor-parallel size.
            pp_size: pipeline stages; the rest of the ranks is data-parallel.
            device: the device this rank computes on.
            timeout: how long a collective of these groups may wait.
            sequence_parallel: see the class; without effect on a tensor-parallel size of 1.
        """
        world_size, rank = dist.get_world_size(), dist.get_rank()
        assert world_size % (tp_size * pp_size) == 0, "the configuration was checked before launch"
        topology = Topology(tp_size, pp_size, world_size // (tp_size * pp_size))

        def mine(*axes: Axis) -> Group:
            own: Group | None = None
            for ranks in topology.groups(*axes):
                group = dist.new_group(ranks, timeout=timeout)
                if rank in ranks:
                    own = group
            assert own is not None, "each rank is in exactly one group of a kind"
            return own

        groups = mine("model"), mine("pipe"), mine("data"), mine("pipe", "model")
        return cls(topology, rank, device, *groups, sequence_parallel=sequence_parallel and tp_size > 1)

    @classmethod
    def offline(
        cls, topology: Topology | None = None, global_rank: int = 0, device: str | torch.device = "cpu"
    ) -> ModelParallelUnit:
        """A unit without processes: to build layers for inspection, or to run with a model-parallel size of one."""
        return cls(topology or Topology(), global_rank, torch.device(device))

    @property
    def tp_size(self) -> int:
        """Tensor-parallel size."""
        return self.topology.tp_size

    @property
    def tp_rank(self) -> int:
        """Place in the tensor-parallel group."""
        return self.topology.coordinates(self.global_rank).model

    @property
    def pp_size(self) -> int:
        """Number of pipeline stages."""
        return self.topology.pp_size

    @property
    def pp_rank(self) -> int:
        """This rank's pipeline stage."""
        return self.topology.coordinates(self.global_rank).pipe

    @property
    def dp_size(self) -> int:
        """Data-parallel size."""
        return self.topology.dp_size

    @property
    def dp_rank(self) -> int:
        """Place in the data-parallel group."""
        return self.topology.coordinates(self.global_rank).data

    def seed_step(self, seed: int, step: int) -> None:
        """Seeds the dropout streams for one training step.

        Ranks of a tensor-parallel group share the default stream; every other pair of ranks draws different numbers.
        """
        place = (seed, step, self.dp_rank, self.pp_rank)
        self.rng.seed(derive_seed("default", *place), derive_seed("tensor-parallel", *place, self.tp_rank))

    # Megatron's names, for DeepSpeed. "Model parallel" means the ranks that hold one copy of the model.

    def get_tensor_model_parallel_group(self) -> Group | None:
        """The tensor-parallel group."""
        return self.tp_group

    def get_tensor_model_parallel_world_size(self) -> int:
        """Tensor-parallel size."""
        return self.tp_size

    def get_tensor_model_parallel_rank(self) -> int:
        """Place in the tensor-parallel group."""
        return self.tp_rank

    def get_tensor_model_parallel_src_rank(self) -> int:
        """Global rank of the first member of the tensor-parallel group."""
        return self.global_rank - self.tp_rank

    def get_pipeline_model_parallel_group(self) -> Group | None:
        """The pipeline's group."""
        return self.pp_group

    def get_pipeline_model_parallel_world_size(self) -> int:
        """Number of pipeline stages."""
        return self.pp_size

    def get_pipeline_model_parallel_rank(self) -> int:
        """This rank's pipeline stage."""
        return self.pp_rank

    def get_data_parallel_group(self) -> Group | None:
        """The data-parallel group."""
        return self.dp_group

    def get_data_parallel_world_size(self) -> int:
        """Data-parallel size."""
        return self.dp_size

    def get_data_parallel_rank(self) -> int:
        """Place in the data-parallel group."""
        return self.dp_rank

    def get_model_parallel_group(self) -> Group | None:
        """The group of the ranks that hold one copy of the model."""
        return self.model_parallel_group

    def get_model_parallel_world_size(self) -> int:
        """Ranks that hold one copy of the model between them."""
        return self.tp_size * self.pp_size

    def get_model_parallel_rank(self) -> int:
        """Place in the group of `get_model_parallel_group`."""
        return self.pp_rank * self.tp_size + self.tp_rank
