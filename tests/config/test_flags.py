from __future__ import annotations

import pytest

from megatron_ds.config import collect
from megatron_ds.config.catalog import all_options
from megatron_ds.config.flags import help_text, parse_command_line
from tests.config.helpers import environ, only_problem, resolved, words


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--num-layers", "24"], "model.num_layers", 24),
        (["--num_layers", "24"], "model.num_layers", 24),
        (["--num-layers=24"], "model.num_layers", 24),
        (["--train-iters", "1e5"], "training.train_iters", 100_000),
        (["--lr", "2e-4"], "optimizer.lr", 2e-4),
        (["--lr", "1"], "optimizer.lr", 1.0),
        (["--bf16"], "training.bf16", True),
        (["--no-bf16"], "training.bf16", False),
        (["--bf16=false"], "training.bf16", False),
        (["--bf16", "--no-bf16"], "training.bf16", False),
        (["--lr", "1", "--lr", "2"], "optimizer.lr", 2.0),
        (["--data-path", "0.3", "a", "0.7", "b", "--bf16"], "data.data_path", ["0.3", "a", "0.7", "b"]),
        (["--model-parallel-size", "2"], "parallel.tensor_model_parallel_size", 2),
        (["--pipe-parallel-size", "2"], "parallel.pipeline_model_parallel_size", 2),
        (["--deepspeed-activation-checkpointing"], "training.checkpoint_activations", True),
        (["--recompute_activations"], "training.checkpoint_activations", True),
        (["--warmup-iters", "3"], "optimizer.lr_warmup_iters", 3),
        (["--tokenizer-type", "PretrainedFromHF"], "data.tokenizer_type", "HFTokenizer"),
        (["--tokenizer-type", "GPTSentencePieceTokenizer"], "data.tokenizer_type", "SentencePieceTokenizer"),
        (["--zero-stage", "2"], "parallel.zero_stage", 2),
    ],
)
def test_flag_in_each_spelling_sets_its_option(argv, path, value):
    line = parse_command_line(argv)
    assert line.problems == []
    assert line.options[path].value == value
    assert type(line.options[path].value) is type(value)
    assert line.options[path].origin.startswith("--")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--num-layer", "2"], ["unknown option --num-layer", "--num-layers"]),
        (["--trian-iters=5"], ["unknown option --trian-iters", "--train-iters"]),
        (["--bf"], ["unknown option --bf"]),
        (["--num-layers", "two"], ["num_layers is a whole number, not 'two'", "--num-layers"]),
        (["--num-layers", "2.5"], ["num_layers is a whole number"]),
        (["--num-layers", "0"], ["greater than or equal to 1"]),
        (["--num-layers"], ["--num-layers needs a value"]),
        (["--lr", "nan"], ["lr is a number"]),
        (["--lr", "inf"], ["lr is a number"]),
        (["--lr", "-1"], ["greater than or equal to 0"]),
        (["--lr-decay-style", "cosin"], ["one of constant, linear, cosine"]),
        (["--zero-stage", "4"], ["one of 0, 1, 2, 3"]),
        (["--bf16", "yes"], ["unexpected argument 'yes'"]),
        (["--bf16=yes"], ["--bf16 takes no value"]),
        (["--deepspeed=1"], ["--deepspeed takes no value"]),
        (["--config"], ["--config needs a value"]),
        (["stray"], ["unexpected argument 'stray'"]),
    ],
)
def test_flag_with_a_mistake_gives_one_problem(argv, parts):
    (problem,) = parse_command_line(argv).problems
    for part in parts:
        assert part in str(problem)


def test_flags_with_several_mistakes_report_all():
    assert len(parse_command_line(["--x", "1", "--num-layers", "a", "b", "--lr", "c"]).problems) == 4


@pytest.mark.parametrize("flag", ["--local_rank=1", "--local-rank=1"])
def test_local_rank_from_a_launcher_is_accepted(flag):
    assert resolved(words(flag)).run.world_size == 1


def test_local_rank_as_two_words_is_accepted():
    assert resolved(words("--local_rank", "1", "--deepspeed")).run.model.num_layers == 2


def test_no_pipeline_parallel_with_one_stage_is_accepted_and_with_two_refused():
    assert resolved(words("--no-pipeline-parallel")).run.parallel.pipeline_model_parallel_size == 1
    text = only_problem(words("--no-pipeline-parallel", "--pipeline-model-parallel-size", "2"), 2)
    assert "--no-pipeline-parallel contradicts a pipeline of 2 stages" in text


def test_help_names_every_flag_and_exits_with_zero(capsys):
    with pytest.raises(SystemExit) as stop:
        collect(["--help"], environ(), "pretrain_gpt.py")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "pretrain_gpt.py" in text
    assert all(option.flag in text for option in all_options().values())


def test_help_on_other_ranks_prints_nothing(capsys):
    with pytest.raises(SystemExit):
        collect(["-h"], environ(2, RANK="1"))
    assert capsys.readouterr().out == ""


def test_help_text_groups_by_block():
    assert "optimizer options" in help_text("x")


def test_flags_of_all_options_are_different():
    flags = [flag for option in all_options().values() for flag in (option.flag, *option.aliases)]
    assert len(flags) == len(set(flags))
