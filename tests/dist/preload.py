"""Imported once by the fork server, so that every forked rank starts warm."""

from __future__ import annotations

import contextlib
import gc
import importlib

import deepspeed
import deepspeed.ops
import deepspeed.runtime.zero.muon.muon_optimizer
import pytest  # noqa: F401 – the test modules that ranks import need it
import torch
import torch._dynamo

torch.set_num_threads(1)
# DeepSpeed would compile this kernel for half a minute or more at each start on CPU; gloo needs none of it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
# The first optimizer of a process imports half of torch's compiler.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])

# What ranks run. A module that fails to import fails again in the test that uses it, with a traceback; here it would
# end the server.
for _module in (
    *("megatron_ds.engine.build", "megatron_ds.models", "megatron_ds.data", "megatron_ds.training"),
    *("megatron_ds.cli.finetune_plan", "sklearn.metrics", "scipy.stats"),
    *("benchmarks.levers", "benchmarks.parity", "benchmarks.relayout", "benchmarks.resume", "benchmarks.tiny_run"),
):
    with contextlib.suppress(Exception):
        importlib.import_module(_module)

# DeepSpeed collects garbage at each start of an engine, and rank 0 more often. Without this, that looks at all objects
# of the imports above: a fifth of a second each time, and most of the pages that a fork shares with the server become
# copies.
gc.collect()
gc.freeze()
