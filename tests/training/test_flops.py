"""FLOP counts against values worked by hand and the ones that the source paper prints (field report F3)."""

from __future__ import annotations

import pytest

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.training.flops import hardware_flops_per_step, model_flops_per_step, peak_flops, throughput


def gpt(layers: int, hidden: int, seq_length: int, ffn: int | None = None) -> ModelConfig:
    return ModelConfig(
        num_layers=layers, hidden_size=hidden, num_attention_heads=1, seq_length=seq_length, ffn_hidden_size=ffn
    )


def test_model_flops_tiny_model_equals_the_hand_count() -> None:
    # B 2, s 8, l 3, h 4, V 10: 72*2*8*3*16 = 55296; its s/(6h) = 1/3 is 18432; its V/(12lh) = 10/144 is 3840.
    assert model_flops_per_step(gpt(3, 4, 8), 2, 10) == 55296 + 18432 + 3840


def test_hardware_flops_with_recomputation_equals_equation_3() -> None:
    # 96*2*8*3*16 = 73728; s/(6h) of it 24576; V/(16lh) = 10/192 of it 3840: logits are not recomputed.
    assert hardware_flops_per_step(gpt(3, 4, 8), 2, 10, checkpoint_activations=True) == 73728 + 24576 + 3840


def test_hardware_flops_without_recomputation_equals_model_flops() -> None:
    model = gpt(3, 4, 8)
    assert hardware_flops_per_step(model, 2, 10, checkpoint_activations=False) == model_flops_per_step(model, 2, 10)


def test_model_flops_other_ffn_size_changes_the_mlp_alone() -> None:
    # f = 6 instead of 16: 2*8 tokens x 3 layers x 12*h*(16 - 6) = 23040 fewer.
    assert model_flops_per_step(gpt(3, 4, 8, ffn=6), 2, 10) == 77568 - 23040


def test_model_flops_shared_heads_gated_mlp_and_window_equal_the_hand_count() -> None:
    # h 8, 4 heads of width 3, 2 heads of keys and values, gated MLP of 5, window 6 of s 16, l 2, V 10.
    model = ModelConfig(
        num_layers=2,
        hidden_size=8,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=3,
        ffn_hidden_size=5,
        activation="swiglu",
        seq_length=16,
        window_size=6,
    )
    # Forward of a layer for one token: queries 2*8*12, keys and values 2*2*8*6, output 2*12*8, three of 2*8*5 in the
    # MLP, and two of 2*6*12 in the scores: 192 + 192 + 192 + 240 + 288 = 1104. Logits 2*8*10 = 160.
    assert model_flops_per_step(model, 3, 10) == 3 * 3 * 16 * (2 * 1104 + 160)
    # A window wider than the sample is none: two of 2*16*12 in the scores.
    wide = model.model_copy(update={"window_size": 99})
    assert model_flops_per_step(wide, 3, 10) == 3 * 3 * 16 * (2 * (816 + 768) + 160)


def test_model_flops_of_llama3_8b_are_six_for_each_weight_and_the_scores() -> None:
    model = ModelConfig(
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_query_groups=8,
        ffn_hidden_size=14336,
        activation="swiglu",
        seq_length=8192,
    )
    # 8,030,261,248 weights, less 128256 x 4096 looked-up embeddings and 65 norms, all in matrix products.
    matrices = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    scores = 32 * 12 * 8192 * 4096
    assert model_flops_per_step(model, 1, 128_256) == 8192 * (6 * matrices + scores)


@pytest.mark.parametrize(("layers", "hidden", "batch"), [(12, 768, 32), (24, 2048, 512), (96, 12288, 1536)])
def test_model_flops_default_ffn_equals_the_formula_of_the_paper(layers: int, hidden: int, batch: int) -> None:
    s, v = 2048, 50257
    paper = 72 * batch * s * layers * hidden**2 * (1 + s / (6 * hidden) + v / (12 * layers * hidden))
    assert model_flops_per_step(gpt(layers, hidden, s), batch, v) == pytest.approx(paper, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "tokens", "petaflops", "days"),
    [(gpt(96, 12288, 2048), 300e9, 1024 * 0.140, 34), (gpt(128, 25600, 2048), 450e9, 3072 * 0.163, 84)],
    ids=["GPT-3", "1T"],
)
def test_hardware_flops_give_the_training_days_that_the_paper_prints(
    model: ModelConfig, tokens: float, petaflops: float, days: int
) -> None:
    # "Training Time Estimates" in section 5.1 of the paper, which drops the s/(6h) of equation 3: hence the 3 %.
    flops = hardware_flops_per_step(model, 1, 51200, checkpoint_activations=True)
    seconds = tokens / model.seq_length * flops / (petaflops * 1e15)
    assert seconds / 86400 == pytest.approx(days, rel=0.03)


@pytest.mark.parametrize(
    ("tflops", "percent"), [(137, 44), (142, 46), (135, 43), (140, 45), (148, 47), (155, 50), (163, 52)]
)
def test_peak_flops_of_a100_gives_the_percentages_of_table_1(tflops: float, percent: int) -> None:
    peak = peak_flops("NVIDIA A100-SXM4-80GB", "fp16")
    assert peak is not None
    assert round(100 * tflops * 1e12 / peak) == percent


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H200 NVL", "bf16", 835.5e12),
        ("NVIDIA H100 80GB HBM3", "fp16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312e12),
        ("NVIDIA GH200 480GB", "bf16", 989e12),
        ("Tesla V100-SXM2-32GB", "fp16", 125e12),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA H200 MIG 3g.71gb", "bf16", None),
        ("NVIDIA A10", "bf16", None),
        ("NVIDIA H200", "fp8", None),
        ("cpu", "fp32", None),
    ],
)
def test_peak_flops_known_and_unknown_devices(name: str, precision: str, expected: float | None) -> None:
    assert peak_flops(name, precision) == expected


def test_throughput_is_per_second_and_per_gpu() -> None:
    # 4e15 operations in 2 s on 4 GPUs: 500 TFLOP/s each, of a peak of 1000.
    speed = throughput(tokens=8192, model_flops=4 * 10**15, step_seconds=2.0, world_size=4, peak_flops_per_gpu=1e15)
    assert speed.tokens_per_second == 4096
    assert speed.tokens_per_second_per_gpu == 1024
    assert speed.model_tflops_per_gpu == pytest.approx(500, rel=1e-12)
    assert speed.mfu == pytest.approx(0.5, rel=1e-12)


def test_throughput_without_a_known_peak_has_no_mfu() -> None:
    speed = throughput(tokens=8, model_flops=10**12, step_seconds=1.0, world_size=1, peak_flops_per_gpu=None)
    assert speed.mfu is None
    assert speed.model_tflops_per_gpu == 1.0
