from __future__ import annotations

import pytest

from megatron_ds.config import resolve, write_resolved
from tests.config.helpers import resolved, words, write_json

CONSTANT = ["--lr-decay-style", "constant"]


def idle(argv, device="cpu", world_size=1):
    environ = {"DS_ACCELERATOR": device, "WORLD_SIZE": str(world_size)}
    return [note for note in resolve(argv, environ, "x").notes if "has no effect" in note]


@pytest.mark.parametrize(
    ("extra", "note"),
    [
        (["--min-lr", "1e-4", *CONSTANT], "--min-lr has no effect with lr_decay_style constant"),
        (["--lr-decay-iters", "9", *CONSTANT], "--lr-decay-iters has no effect with lr_decay_style constant"),
        (["--loss-scale", "8"], "--loss-scale has no effect without fp16"),
        (["--initial-loss-scale", "8"], "--initial-loss-scale has no effect without fp16"),
        (["--min-loss-scale", "2"], "--min-loss-scale has no effect without fp16"),
        (["--loss-scale-window", "8", "--bf16"], "--loss-scale-window has no effect without fp16"),
        (["--max-skipped-steps", "8"], "--max-skipped-steps has no effect without fp16"),
        (["--hysteresis", "8"], "--hysteresis has no effect without fp16"),
        (["--pp-partition-method", "uniform"], "--pp-partition-method has no effect with a pipeline of one stage"),
        (
            ["--recompute-num-layers", "2", "--recompute-activations"],
            "--recompute-num-layers has no effect without recompute_granularity full",
        ),
        (["--recompute-method", "block"], "--recompute-method has no effect without recompute_granularity full"),
        (
            ["--checkpoint-activations", "--partition-activations"],
            "--partition-activations has no effect with a tensor-parallel size of 1",
        ),
        (
            ["--checkpoint-activations", "--checkpoint-in-cpu"],
            "--checkpoint-in-cpu has no effect on CPU: everything is in its memory",
        ),
        (
            ["--bert-max-ngram", "2", "--bert-mask-type", "word", "--model-type", "bert"],
            "--bert-max-ngram has no effect without bert_mask_type ngram",
        ),
        (["--split", "9,1,0", "--task", "RACE"], "--split has no effect with a task, which has examples of its own"),
        (
            ["--eval-iters", "7", "--task", "RACE"],
            "--eval-iters has no effect with a task, whose sets are evaluated whole; 0 turns that off",
        ),
        (["--no-packing", "--task", "RACE"], "--no-packing has no effect without task SFT"),
        (["--mask-prob", "0.2"], "--mask-prob has no effect without a model_type of bert"),
        (["--bert-mask-type", "word"], "--bert-mask-type has no effect without a model_type of bert"),
        (["--bert-max-ngram", "2"], "--bert-max-ngram has no effect without a model_type of bert"),
        (["--short-seq-prob", "0"], "--short-seq-prob has no effect without a model_type of bert"),
        (["--wandb-exp-name", "x"], "--wandb-exp-name has no effect without wandb_project"),
        (
            ["--eod-id", "0"],
            "--eod-id has no effect without any of reset_position_ids, reset_attention_mask, eod_mask_loss",
        ),
        (
            ["--position-embedding-type", "rope", "--max-position-embeddings", "8"],
            "--max-position-embeddings has no effect without learned positions",
        ),
        (
            ["--position-embedding-type", "alibi", "--reset-position-ids"],
            "--reset-position-ids has no effect with position_embedding_type alibi or none, which count no positions",
        ),
        (["--sequence-parallel"], "--sequence-parallel has no effect with a tensor-parallel size of 1"),
        (
            ["--check-tp-replicas-interval", "2"],
            "--check-tp-replicas-interval has no effect with a tensor-parallel size of 1",
        ),
        (["--add-qkv-bias"], "--add-qkv-bias has no effect without disable_bias_linear: all linear layers have biases"),
        (
            ["--deepnorm", "--no-use-scaled-init-method"],
            "--no-use-scaled-init-method has no effect with deepnorm, which has a factor of its own",
        ),
        (
            ["--fp32-residual-connection"],
            "--fp32-residual-connection has no effect without bf16 or fp16: everything is fp32",
        ),
        (
            ["--position-embedding-type", "rope", "--use-rope-scaling", "--rope-scaling-factor", "1"],
            "--use-rope-scaling has no effect with rope_scaling_factor 1: no wavelength is stretched",
        ),
        (
            ["--position-embedding-type", "rope", "--rotary-seq-len-interpolation-factor", "1"],
            "--rotary-seq-len-interpolation-factor has no effect at 1: positions are divided by it",
        ),
        (["--prefix-lm", "--seq-length", "1"], "--prefix-lm has no effect with samples of one token"),
        (["--window-size", "16"], "--window-size has no effect with samples no longer than the window"),
        (["--eval-interval", "5", "--eval-iters", "0"], "--eval-interval has no effect with eval_iters 0"),
        (
            ["--tokenizer-type", "ByteTokenizer", "--vocab-file", "x"],
            "--vocab-file has no effect with this tokenizer_type: only GPT2BPETokenizer, BertWordPieceLowerCase and "
            "BertWordPieceCase read it",
        ),
        (
            ["--tokenizer-type", "GPT2BPETokenizer", "--tokenizer-model", "x"],
            "--tokenizer-model has no effect with this tokenizer_type: only SentencePieceTokenizer reads it",
        ),
    ],
)
def test_option_given_without_effect_has_one_note(extra, note):
    assert idle(words(*extra)) == [note]


PP2 = ["--checkpoint-activations", "--pipeline-model-parallel-size", "2", "--recompute-num-layers"]


@pytest.mark.parametrize(
    ("extra", "notes"),
    [
        (["3", "--recompute-method", "block"], ["(2 layers): all layers of every stage are recomputed"]),
        (["3"], ["(2 layers): every stage is one chunk"]),
        (["2", "--recompute-method", "block"], []),
        (["3", "--recompute-method", "block", "--pp-partition-method", "layers:1,3"], []),
        (["4", "--pp-partition-method", "layers:1,3"], ["(3 layers): every stage is one chunk"]),
        (["3", "--pp-partition-method", "uniform"], []),
    ],
)
def test_more_recomputed_layers_than_a_stage_has_are_noted(extra, notes):
    found = resolve(words(*PP2, *extra, num_layers="4"), {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": "2"}, "x").notes
    text = f"--recompute-num-layers {extra[0]} is more than any stage has "
    assert list(found) == [text + note for note in notes]


def test_dynamic_loss_scale_beside_a_fixed_one_has_one_note():
    argv = words("--fp16", "--loss-scale", "8", "--hysteresis", "4")
    assert idle(argv, "cuda") == ["--hysteresis has no effect with a fixed loss_scale"]


@pytest.mark.parametrize(
    ("extra", "device", "world_size"),
    [
        (["--min-lr", "1e-4"], "cpu", 1),
        (["--lr-decay-iters", "9", "--lr-warmup-fraction", "0.1", *CONSTANT], "cpu", 1),
        (["--fp16", "--hysteresis", "4"], "cuda", 1),
        (["--pp-partition-method", "uniform", "--pipeline-model-parallel-size", "2"], "cpu", 2),
        (["--checkpoint-activations", "--checkpoint-in-cpu"], "cuda", 1),
        (["--checkpoint-activations", "--partition-activations", "--tensor-model-parallel-size", "2"], "cpu", 2),
        (["--wandb-exp-name", "x", "--wandb-project", "y"], "cpu", 1),
        (["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "x", "--merge-file", "y"], "cpu", 1),
        (["--vocab-file", "x"], "cpu", 1),
        (["--eod-id", "0", "--eod-mask-loss"], "cpu", 1),
    ],
)
def test_option_with_an_effect_has_no_note(extra, device, world_size):
    assert idle(words(*extra), device, world_size) == []


def test_block_option_without_effect_is_noted_and_a_deepspeed_key_is_not(tmp_path):
    content = {"fp16": {"hysteresis": 4}, "megatron_ds": {"optimizer": {"min_lr": 1e-4}}}
    file = write_json(tmp_path / "run.json", content)
    assert idle(words("--deepspeed_config", file, *CONSTANT)) == [
        f"{file}: megatron_ds.optimizer.min_lr has no effect with lr_decay_style constant"
    ]


def test_written_run_given_back_has_no_notes(tmp_path):
    write_resolved(resolved(words()), tmp_path)
    assert idle(["--config", str(tmp_path / "run_config.json")]) == []
