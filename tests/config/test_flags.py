from __future__ import annotations

import pytest

from megatron_ds.config import collect
from megatron_ds.config.catalog import all_options
from megatron_ds.config.flags import parse_command_line
from megatron_ds.config.help import help_text
from megatron_ds.config.migration import other_names, renamed
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
        (["--recompute_activations"], "training.recompute_activations", True),
        (["--checkpoint-num-layers", "2"], "training.recompute_num_layers", 2),
        (["--partition-activations"], "training.distribute_saved_activations", True),
        (["--warmup-iters", "3"], "optimizer.lr_warmup_iters", 3),
        (["--tokenizer-type", "PretrainedFromHF"], "data.tokenizer_type", "HFTokenizer"),
        (["--tokenizer-type", "GPTSentencePieceTokenizer"], "data.tokenizer_type", "SentencePieceTokenizer"),
        (["--zero-stage", "2"], "parallel.zero_stage", 2),
        (["--swiglu"], "model.activation", "swiglu"),
        (["--squared_relu"], "model.activation", "squared_relu"),
        (["--glu-activation", "geglu"], "model.activation", "geglu"),
        (["--swiglu", "--glu-activation", "swiglu"], "model.activation", "swiglu"),
        (["--position-embedding-type", "rotary"], "model.position_embedding_type", "rope"),
        (["--position-embedding-type", "absolute"], "model.position_embedding_type", "learned_absolute"),
        (["--use-rotary-position-embeddings"], "model.position_embedding_type", "rope"),
        (["--apply-residual-connection-post-layernorm"], "model.residual_connection", "post_ln"),
        (["--gpt-j-residual"], "model.residual_connection", "parallel"),
        (["--num-key-value-heads", "2"], "model.num_query_groups", 2),
        (["--normalization", "rmsnorm"], "model.normalization", "RMSNorm"),
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
        (["--bf16", "true"], ["--bf16 is a switch and takes no word after it, found 'true'", "--bf16=true"]),
        (["--bf16", "False"], ["takes no word after it, found 'False'", "write --bf16=false, or leave --bf16 out"]),
        (["--no-bf16", "1"], ["--no-bf16 is a switch", "write --no-bf16 or --no-bf16=true"]),
        (["--deepspeed", "true"], ["--deepspeed is a switch", "write --deepspeed alone"]),
        (["--bf16", "stray"], ["unexpected argument 'stray'"]),
        (["--bf16=yes"], ["--bf16 takes no value but true and false", "--bf16=true or --bf16=false"]),
        (["--deepspeed=1"], ["--deepspeed takes no value"]),
        (["--config"], ["--config needs a value"]),
        (["--config="], ["--config is text that isn't empty"]),
        (["--deepspeed_config", ""], ["--deepspeed-config is text that isn't empty"]),
        (["--model-preset", " "], ["--model-preset is text that isn't empty"]),
        (["--save="], ["save is text that isn't empty (leave the option out instead), not ''"]),
        (["--load", ""], ["load is text that isn't empty"]),
        (["--data-path", "a", ""], ["data_path is text that isn't empty", '["a", ""]']),
        (["--save", "x" * 256], ["at most 4095 bytes, and 255 between two slashes", "characters)"]),
        (["--save", "x/" * 2048], ["at most 4095 bytes"]),
        (["--save", "a\0b"], ["text without null characters"]),
        (["--save", "\udcff"], ["text in UTF-8"]),
        (["--train-iters", "1000000001"], ["less than or equal to 1000000000"]),
        (["--train-iters", "9" * 5000], ["train_iters is a whole number"]),
        (["--vocab-size", "2147483648"], ["less than or equal to 2147483647"]),
        (["--hidden-size", "1e300"], ["less than or equal to 10000000"]),
        (["--distributed-timeout-minutes", "0.01"], ["greater than or equal to 0.1"]),
        (["--distributed-timeout-minutes", "1e6"], ["less than or equal to 100000"]),
        (["stray"], ["unexpected argument 'stray'"]),
    ],
)
def test_flag_with_a_mistake_gives_one_problem(argv, parts):
    (problem,) = parse_command_line(argv).problems
    for part in parts:
        assert part in str(problem)


def test_word_after_a_switch_is_one_problem_even_where_another_rule_waits():
    assert "takes no word after it" in only_problem(words("--bf16", "false", "--zero-stage", "0"))


def test_flags_with_several_mistakes_report_all():
    assert len(parse_command_line(["--x", "1", "--num-layers", "a", "b", "--lr", "c"]).problems) == 4


@pytest.mark.parametrize("flag", ["--local_rank=1", "--local-rank=1"])
def test_local_rank_from_a_launcher_is_accepted(flag):
    assert resolved(words(flag)).run.world_size == 1


def test_local_rank_as_two_words_is_accepted():
    assert resolved(words("--local_rank", "1", "--deepspeed")).run.model.num_layers == 2


def test_no_pipeline_parallel_with_one_stage_is_accepted_and_with_two_refused():
    """P10. ZeRO 2 and 3 with one stage are trained in tests/engine/test_parity.py."""
    assert resolved(words("--no-pipeline-parallel", "--zero-stage", "2")).run.zero_stage == 2
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


def test_numbers_of_all_options_have_bounds_on_both_sides():
    for option in all_options().values():
        if option.kind in ("int", "float") and not option.choices:
            bounds = {type(one).__name__ for one in option.field.metadata}
            assert bounds & {"Ge", "Gt"} and bounds & {"Le", "Lt"}, option.path


def test_flags_of_all_options_are_different():
    flags = [flag for option in all_options().values() for flag in (option.flag, *option.aliases)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--use-flash-attn", "--attention-backend flash"),
        ("--use_distributed_optimizer", "--zero-stage 1"),
        ("--no-position-embedding", "--position-embedding-type none"),
        ("--context-parallel-size", "--sequence-parallel"),
        ("--expert-model-parallel-size", "experts are not supported"),
        ("--sync-tp-duplicated-parameters", "--check-tp-replicas-interval"),
        ("--no-rope-fusion", "leave it out"),
        ("--optimizer", "AdamW"),
        ("--num-hidden-layers", "here it is --num-layers"),
        ("--tp", "here it is --tensor-model-parallel-size"),
    ],
)
def test_flag_of_others_says_what_to_do(flag, advice):
    (problem,) = parse_command_line([flag, "1"] if not flag.startswith("--no-") else [flag]).problems
    assert advice in problem.advice
    assert "did you mean" not in str(problem)


def test_names_of_others_are_no_options_and_their_renamings_are():
    names = {option.name for option in all_options().values()}
    flags = {flag for option in all_options().values() for flag in (option.flag, *option.aliases, *option.switches)}
    assert not other_names() & {flag.removeprefix("--").replace("-", "_") for flag in flags}
    assert {name for each in other_names() if (name := renamed(each)) is not None} <= names


@pytest.mark.parametrize(
    "flag",
    [
        "--use-distributed-optimiser",
        "--no-query-key-scaling",
        "--expert-parallel-size",
        "--no-rope-kernels",
        "--lr-warmup-epochs",
    ],
)
def test_flag_that_shares_words_with_another_one_is_not_guessed(flag):
    (problem,) = parse_command_line([flag]).problems
    assert (problem.message, problem.advice) == (f"unknown option {flag}", "--help lists all options")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--hiddensize", "--hidden-size"),
        ("--tensor-parallel-size", "--tensor-model-parallel-size"),
        ("--adam-beta-1", "--adam-beta1"),
        ("--mirco-batch-size", "--micro-batch-size"),
        ("--max-position-embedings", "--max-position-embeddings"),
        ("--deepspeed-confg", "--deepspeed-config"),
    ],
)
def test_slip_of_the_keyboard_is_guessed(flag, meant):
    (problem,) = parse_command_line([flag, "1"]).problems
    assert str(problem) == f"unknown option {flag} – did you mean {meant}?"


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["--attention-backend", "magic"], "attention_backend: Kernel of attention."),
        (["--lr-decay-style", "cosin"], "did you mean cosine?"),
        (["--normalization", "layernrm"], "did you mean LayerNorm?"),
        (["--num-layers", "0"], "use at least 1 and at most 100000"),
        (["--lr", "-1"], "use at least 0 and at most 1000"),
        (["--rotary-percent", "0"], "use more than 0 and at most 1"),
        (["--num-layers", "two"], "num_layers: Number of transformer layers."),
    ],
)
def test_wrong_value_says_what_to_do(argv, advice):
    (problem,) = parse_command_line(argv).problems
    assert problem.advice.startswith(advice)


def test_option_of_megatron_that_is_not_here_says_what_to_do() -> None:
    line = parse_command_line(["--data-impl", "mmap", "--no-bias-gelu-fusion", "--train_samples", "9"])
    assert [problem.message.split()[0] for problem in line.problems] == [
        "--data-impl",
        "--no-bias-gelu-fusion",
        "--train-samples",
    ]
    assert "always memory-mapped" in line.problems[0].advice
    assert "give --train-iters" in line.problems[2].advice
