import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.plain import PlainModel
from benchmarks.peers.workload import TOYS, Layout, Workload
from benchmarks.tiny_bert import plain_bert_loss
from benchmarks.train_step import measure
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.models import SequentialModel, initialize_weights, model_layers
from megatron_ds.mpu import ModelParallelUnit

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {
    *("step_seconds", "tokens_per_second", "model_tflops_per_gpu", "mfu", "mfu_convention", "hfu", "hfu_convention"),
    *("peak_memory_gib", "startup_seconds", "compile_seconds", "losses", "facts", "samples_per_step"),
}


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("dp2z1", Layout(dp=2)),
        ("tp2sp", Layout(tp=2, sequence_parallel=True)),
        ("dp2z3", Layout(dp=2, zero=3)),
        ("pp2m8", Layout(pp=2, num_micro_batches=8)),
        ("tp2pp3dp4z0", Layout(tp=2, pp=3, dp=4, zero=0)),
    ],
)
def test_layout_parse_gives_its_parts(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout


@pytest.mark.parametrize("text", ["", "dp", "dp2x", "dp2dp4", "dp0", "zero1"])
def test_layout_parse_of_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        Layout.parse(text)


def test_workload_goes_through_json_unchanged() -> None:
    workload = Workload("ours", "toy", "dp2m4", seq_length=16, options=("--swiglu",))
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.samples == 8


def test_workload_resolve_takes_layout_batches_and_options_over() -> None:
    workload = Workload("ours", "gpt2_1p3b", "tp2spdp2", 3, 5, seq_length=8192, options=("--checkpoint-activations",))
    run = workload.resolve(on_cuda=True).run
    assert (run.parallel.tensor_model_parallel_size, run.parallel.sequence_parallel) == (2, True)
    assert (run.training.micro_batch_size, run.training.global_batch_size) == (3, 30)
    assert (run.model.seq_length, run.model.num_positions, run.model.hidden_size) == (8192, 8192, 2048)
    assert (run.training.precision, run.training.recompute, run.optimizer.clip_grad) == ("bf16", "full", 1.0)


def test_micro_batches_of_all_ranks_are_the_whole_batch_once() -> None:
    workload = Workload("plain", "toy_bert", "dp2", micro_batch_size=2, micro_batches=3)
    whole = workload.whole_batch(0, "bert", 16, 61)
    parts = [list(workload.micro_batches_of(whole, rank)) for rank in range(2)]
    in_order = [part.tokens for pair in zip(*parts, strict=True) for part in pair]
    assert torch.equal(torch.cat(in_order), whole.tokens)
    assert {len(tokens) for tokens in in_order} == {2}


@pytest.mark.parametrize("preset", TOYS)
def test_plain_model_with_our_weights_gives_our_loss_and_gradients(preset: str) -> None:
    workload = Workload("plain", preset, micro_batch_size=3)
    run = workload.resolve(on_cuda=False).run
    config = run.model
    mpu = ModelParallelUnit.offline(device=torch.device("cpu"))
    ours = SequentialModel(model_layers(config, mpu))
    initialize_weights(ours.named_parameters(), run.training.seed, mpu)
    plain = PlainModel(config, compiled=False)
    plain.load_state_dict(dict(ours.named_parameters()))
    assert config.vocab_size is not None
    batch = workload.whole_batch(0, config.model_type, config.seq_length, config.vocab_size)

    outputs = ours(batch.inputs)
    if isinstance(batch, BertBatch):
        wanted = plain_bert_loss(outputs, batch, config.vocab_size)
    else:
        wanted = F.cross_entropy(
            outputs.transpose(0, 1)[..., : config.vocab_size].flatten(0, 1), batch.labels.flatten()
        )
    found = plain(batch, float(batch.loss_mask.sum()), workload.samples)
    wanted.backward()
    found.backward()

    torch.testing.assert_close(found, wanted)
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("contender", "layout", "reason"),
    [("plain", "tp2", "tensor-parallel size 2"), ("hf_deepspeed", "pp2", "2 pipeline"), ("plain", "dp2z3", "stage 3")],
)
def test_measure_layout_that_a_peer_lacks_says_so(contender: str, layout: str, reason: str) -> None:
    line = measure(Workload(contender, "toy", layout), timeout=60)
    assert reason in str(line["skipped"])


def test_measure_contender_that_fails_gives_a_line_with_the_error() -> None:
    line = measure(Workload("ours", "no_such_model"), timeout=120)
    assert "no_such_model" in str(line["error"])


@pytest.mark.slow
def test_train_step_smoke_measures_all_installed_contenders_at_equal_work() -> None:
    command = [sys.executable, "-m", "benchmarks.train_step", "--smoke", "--num-micro-batches", "2"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = {line["contender"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert list(lines) == ["matmul_bound", *CONTENDERS]
    assert lines["matmul_bound"]["tflops"] > 0
    measured = {name: line for name, line in lines.items() if "facts" in line}
    assert measured.keys() >= {"ours", "plain", "plain_deepspeed", "hf_deepspeed"}
    for name, line in measured.items():
        assert line.keys() >= FIGURES
        assert (line["samples_per_step"], len(line["losses"])) == (4, 3)
        facts = line["facts"]
        assert (facts["micro_batch_size"], facts["num_micro_batches"], facts["clip_grad"]) == (2, 2, 1.0)
        assert (facts["dtype"], facts["gradient accumulation"], facts["compiled"]) == ("float32", "float32", False)
        assert facts["zero"] == (0 if name == "plain" else 1)
        assert facts["parameters_of_rank"] == lines["ours"]["facts"]["parameters_of_rank"]
    for name in ("plain", "plain_deepspeed"):
        assert lines[name]["losses"] == pytest.approx(lines["ours"]["losses"], rel=1e-5)
    assert lines["hf_deepspeed"]["losses"][0] == pytest.approx(lines["ours"]["losses"][0], abs=0.5)
    assert lines["megatron_core"].keys() & {"skipped", "facts"}
