"""The table of flags of others: every flag of both forks has one answer, and the parser gives that answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from megatron_ds.cli.evaluate_options import parser as evaluate_parser
from megatron_ds.cli.migration_page import migration_page
from megatron_ds.cli.preprocess import main as preprocess
from megatron_ds.cli.preprocess import preprocess_parser
from megatron_ds.config.catalog import all_options
from megatron_ds.config.flags import parse_command_line
from megatron_ds.config.migration import RUN_TOPICS, TOOL_TOPICS, VALUES, tool_advice
from megatron_ds.config.migration.entries import Entry, Names, Topic, entries_of, key_of
from megatron_ds.config.migration.verdicts import Verdict, name_in_a_run, verdict
from megatron_ds.errors import ConfigError

_REPOSITORY = Path(__file__).parents[2]
_ENTRIES = [(topic, entry) for topic in RUN_TOPICS for entry in entries_of(topic)]
_OF_FORKS = [(topic, entry) for topic, entry in _ENTRIES if entry.owner]


def _dashed(entry: Entry) -> str:
    return "--" + key_of(entry.flag).replace("_", "-")


def test_every_flag_of_the_forks_is_answered_by_the_parser_as_by_the_table():
    for topic, entry in _OF_FORKS:
        word = verdict(topic, entry, name_in_a_run).word
        messages = [str(problem) for problem in parse_command_line([entry.flag]).problems]
        refused = any(f"{_dashed(entry).lower()} is an option of" in message.lower() for message in messages)
        unknown = any(message.lower().startswith(f"unknown option {_dashed(entry)}") for message in messages)
        assert refused == (word == "refused"), entry.flag
        # Those that have another name, and are not accepted under the old one.
        assert unknown == (entry.now is not None), entry.flag
        if entry.now is not None:
            assert messages == [f"unknown option {_dashed(entry)}\n  here it is --{entry.now.replace('_', '-')}"]


def test_table_has_the_flags_of_both_forks():
    owners = Counter(entry.owner for _, entry in _OF_FORKS)
    assert owners["both"] > 150 and owners["Microsoft"] > 150 and owners["BLOOM"] > 30
    flags = {entry.flag for _, entry in _OF_FORKS}
    assert {"--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config", "--local_rank"} <= flags


def test_table_has_each_name_once():
    twice = [name for name, count in Counter(key_of(entry.flag) for _, entry in _ENTRIES).items() if count > 1]
    assert twice == []


@pytest.mark.parametrize("topic", [*RUN_TOPICS, *TOOL_TOPICS.values()], ids=lambda topic: topic.title)
def test_notes_and_clashes_of_a_topic_are_about_its_flags(topic):
    assert {*topic.notes, *topic.clashes} <= {entry.flag for entry in entries_of(topic)}


def test_values_of_forks_are_no_values_here():
    for path, advice in VALUES.items():
        option = all_options()[path]
        assert not {*advice} & {*map(str, option.choices), *option.older_values}


def test_flag_that_takes_several_words_is_one_problem():
    (problem,) = parse_command_line(["--rampup-batch-size", "192", "16", "9_765_625"]).problems
    assert "--train-iters = samples / global batch size" in problem.advice


def test_flag_that_means_something_else_here_says_so_without_its_value():
    (problem,) = parse_command_line(["--keep-last", "--bf16"]).problems
    assert problem.message == "--keep-last needs a value"
    assert "the last batch is kept always" in problem.advice


@pytest.mark.parametrize(
    ("flag", "value", "advice"),
    [
        ("--task", "WIKITEXT103", "megatron-ds evaluate"),
        ("--lr-decay-style", "inverse-square-root", "use constant, linear or cosine"),
        ("--tokenizer-type", "HFAutoTokenizer", "use HFTokenizer"),
    ],
)
def test_value_of_a_fork_says_what_to_do(flag, value, advice):
    (problem,) = parse_command_line([flag, value]).problems
    assert advice in problem.advice


@pytest.mark.parametrize(
    ("flag", "path", "value"),
    [
        ("--rotary-position-embeddings-theta", "model.rotary_base", 5e5),
        ("--distribute-checkpointed-activations", "training.distribute_saved_activations", True),
        ("--override-opt_param-scheduler", "checkpoint.override_lr_scheduler", True),
    ],
)
def test_flag_of_a_fork_with_another_name_here_is_accepted(flag, path, value):
    line = parse_command_line([flag] if value is True else [flag, str(value)])
    assert line.problems == []
    assert line.options[path].value == value


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--num-layers", Verdict("same")),
        ("--deepspeed_config", Verdict("same")),
        ("--swiglu", Verdict("renamed", "`--activation swiglu`; the old flag works")),
        ("--bert-no-binary-head", Verdict("renamed", "`--no-bert-binary-head`; the old flag works")),
        ("--model-parallel-size", Verdict("renamed", "`--tensor-model-parallel-size`; the old flag works")),
        ("--batch-size", Verdict("renamed", "`--micro-batch-size`")),
    ],
)
def test_verdict_is_read_off_the_catalog(flag, expected):
    ((topic, entry),) = [(topic, entry) for topic, entry in _OF_FORKS if entry.flag == flag]
    assert verdict(topic, entry, name_in_a_run) == expected


def test_accepted_flag_that_is_no_option_is_an_error_of_the_table():
    topic = Topic("x", accepted=Names(both="--no-such-option"))
    with pytest.raises(LookupError, match="--no-such-option"):
        verdict(topic, next(entries_of(topic)), name_in_a_run)


@pytest.mark.parametrize("parser", [preprocess_parser(), evaluate_parser()], ids=lambda parser: parser.prog)
def test_every_flag_of_a_tool_is_an_option_of_ours_or_has_advice(parser):
    accepted = {name for action in parser._actions for name in action.option_strings}
    for entry in entries_of(TOOL_TOPICS[parser.prog]):
        assert (_dashed(entry) in accepted) == (entry.advice is None and entry.now is None), entry.flag
        assert (tool_advice(parser.prog, entry.flag) is None) == (_dashed(entry) in accepted), entry.flag


def test_preprocess_with_flags_of_forks_names_all_of_them():
    with pytest.raises(ConfigError) as error:
        preprocess(["--input", "x.jsonl", "--hf-autotokenizer-model=gpt2", "--datasets", "a", "b"])
    assert [problem.message.split()[0] for problem in error.value.problems] == [
        "--hf-autotokenizer-model",
        "--datasets",
    ]
    assert "--tokenizer-name-or-path" in error.value.problems[0].advice


def test_docs_migrating_page_is_current():
    page = _REPOSITORY / "docs" / "migrating.md"
    text = page.read_text(encoding="utf-8")
    assert text == migration_page(), "run python -m megatron_ds.cli.migration_page > docs/migrating.md"
    assert all(f"`{entry.flag}`" in text for _, entry in _OF_FORKS)
