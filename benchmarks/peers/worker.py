"""One process of one contender: builds it, times its steps, and prints the result on rank 0.

    python -m benchmarks.peers.worker '{"contender": ..., ...}' SECONDS_SINCE_1970_AT_THE_START

Started by `benchmarks.train_step`, in a process of its own for each rank. The result is the one line of the output that
begins with `RESULT`.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.workload import RESULT, Contender, Workload
from megatron_ds.config import ResolvedRun
from megatron_ds.engine.distributed import local_device
from megatron_ds.errors import ConfigError
from megatron_ds.training.flops import hardware_flops_per_step, model_flops_per_step, peak_flops, throughput

GIB = 2**30


@dataclass(frozen=True)
class Timing:
    """Steps by the clock, with the device idle before and after each.

    Attributes:
        seconds: of each step, the warm-up's included.
        losses: of each step.
        gib: peak of allocated memory during the timed steps, and of the whole process, on the fullest GPU; None on CPU.
    """

    seconds: list[float]
    losses: list[float]
    gib: tuple[float, float] | None


def time_steps(contender: Contender, workload: Workload, resolved: ResolvedRun) -> Timing:
    """Runs the warm-up and the timed steps. Making a batch is not timed; copying it to the device is."""
    model = resolved.run.model
    device = local_device()
    on_cuda = device.type == "cuda"
    seconds, losses, before = [], [], 0
    for step in range(workload.warmup + workload.steps):
        whole = workload.whole_batch(step, model.model_type, model.seq_length, model.vocab_size or 0)
        label_count = float(whole.loss_mask.sum())
        batches = list(workload.micro_batches_of(whole, contender.dp_rank))
        if on_cuda:
            batches = [batch.pin_memory() for batch in batches]
            if step == workload.warmup:
                before = torch.cuda.max_memory_allocated(device)
                torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.synchronize(device)
        dist.barrier()
        started = time.perf_counter()
        loss = contender.train_step(batches, label_count)
        if on_cuda:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
        losses.append(float(loss))
    if not on_cuda:
        return Timing(seconds, losses, None)
    timed = torch.cuda.max_memory_allocated(device)
    peaks = torch.tensor([timed, max(before, timed)], device=device, dtype=torch.float64)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    first, second = (peaks / GIB).tolist()
    return Timing(seconds, losses, (first, second))


def result(workload: Workload, resolved: ResolvedRun, timing: Timing, startup_seconds: float) -> dict[str, object]:
    """The figures of one contender; `docs/performance.md` says what MFU and HFU count."""
    model, training, cut = resolved.run.model, resolved.run.training, workload.cut
    device = local_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = peak_flops(name, training.precision)
    timed = timing.seconds[workload.warmup :]
    step_seconds = statistics.median(timed)
    assert model.vocab_size is not None
    flops = model_flops_per_step(model, workload.samples, model.vocab_size)
    hardware = hardware_flops_per_step(
        model,
        workload.samples,
        model.padded_vocab_size(cut.tp),
        checkpoint_activations=workload.contender == "ours" and training.recompute == "full",
    )
    speed, hardware_speed = (
        throughput(
            tokens=workload.samples * model.seq_length,
            model_flops=count,
            step_seconds=step_seconds,
            world_size=cut.world_size,
            peak_flops_per_gpu=peak,
        )
        for count in (flops, hardware)
    )
    return {
        "device": name,
        "precision": training.precision,
        "seq_length": model.seq_length,
        "samples_per_step": workload.samples,
        "step_seconds": _rounded(step_seconds),
        "fastest_step_seconds": _rounded(min(timed)),
        "slowest_step_seconds": _rounded(max(timed)),
        "tokens_per_second": round(speed.tokens_per_second),
        "tokens_per_second_per_gpu": round(speed.tokens_per_second_per_gpu),
        "model_tflops_per_gpu": _rounded(speed.model_tflops_per_gpu),
        "mfu": _rounded(speed.mfu),
        "mfu_convention": "Narayanan et al. 2021, eq. 3 without recomputation, ids without padding, all S x S scores",
        "hfu": _rounded(hardware_speed.mfu),
        "hfu_convention": "the same with recomputed layers and padded ids",
        "peak_memory_gib": _rounded(timing.gib[0]) if timing.gib else None,
        "peak_memory_gib_with_start": _rounded(timing.gib[1]) if timing.gib else None,
        "startup_seconds": round(startup_seconds, 2),
        "compile_seconds": round(timing.seconds[0] - step_seconds, 2),
        "losses": [round(loss, 6) for loss in timing.losses],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def main() -> int:
    workload, started = Workload.from_json(sys.argv[1]), float(sys.argv[2])
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    entry = CONTENDERS[workload.contender]
    on_cuda = torch.cuda.is_available()
    try:
        resolved = workload.resolve(on_cuda=on_cuda)
    except ConfigError as error:
        print(RESULT + json.dumps({"error": str(error)}), flush=True)
        return 1
    reason = "it needs CUDA" if entry.needs_cuda and not on_cuda else entry.refuses(resolved.run.model)
    if reason:
        print(RESULT + json.dumps({"skipped": reason}), flush=True)
        return 0
    contender = entry.build(workload, resolved)
    dist.barrier()
    startup_seconds = time.time() - started
    timing = time_steps(contender, workload, resolved)
    facts = contender.facts()
    if dist.get_rank() == 0:
        measured = result(workload, resolved, timing, startup_seconds)
        print(RESULT + json.dumps({**measured, "facts": facts}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
