"""Which family of models a run trains, and the options that only one of them has."""

from __future__ import annotations

import pytest

from megatron_ds.config import collect
from tests.config.helpers import environ, only_problem, problems, resolved, words

BERT = ("--model-type", "bert")


def _of_program(family: str, *flags: str) -> tuple[str, list[str]]:
    run, found = collect(words(*flags), environ(), f"pretrain_{family}.py", family)
    assert run is not None
    return run.run.model.model_type, [str(problem) for problem in found]


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_launcher_says_which_family_it_trains(family: str) -> None:
    assert _of_program(family) == (family, [])


def test_launcher_refuses_a_preset_of_another_family() -> None:
    model_type, found = _of_program("gpt", "--model-preset", "bert_base")
    assert model_type == "bert"
    assert len(found) == 1
    assert "pretrain_gpt.py trains models of the family gpt" in found[0]
    assert "preset bert_base" in found[0]
    assert "start pretrain_bert.py" in found[0]


@pytest.mark.parametrize("flag", ["--bert-no-binary-head", "--no-bert-binary-head", "--bert-binary-head=false"])
def test_binary_head_can_be_left_out(flag: str) -> None:
    model = resolved(words(*BERT, flag)).run.model
    assert (model.bert_binary_head, model.token_types) == (False, 0)
    assert resolved(words(*BERT)).run.model.token_types == 2


def test_token_types_are_those_that_are_given() -> None:
    assert resolved(words(*BERT, "--bert-no-binary-head", "--num-tokentypes", "1")).run.model.token_types == 1
    assert "samples have tokens of two types" in only_problem(words(*BERT, "--num-tokentypes", "1"))


def test_files_of_a_task_in_pretraining_are_a_problem_of_their_own() -> None:
    _, found = collect(words("--epochs", "2"), environ(), "pretrain_gpt.py", "gpt")
    assert [problem.message for problem in found] == ["epochs is given and task is not"]
    _, found = collect(words("--epochs", "2", "--task", "cola"), environ(), "pretrain_gpt.py", "gpt")
    assert [problem.advice for problem in found] == ["did you mean CoLA?"]


@pytest.mark.parametrize("flags", [("--bert-no-binary-head",), ("--num-tokentypes", "2")])
def test_options_of_bert_without_bert_are_a_problem(flags: tuple[str, ...]) -> None:
    assert "and model_type is gpt" in only_problem(words(*flags))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--prefix-lm",), "prefix_lm true"),
        (("--window-size", "4"), "window_size 4"),
        (("--embed-layernorm",), "embed_layernorm true"),
        (("--untie-embeddings-and-output-weights",), "untie_embeddings_and_output_weights true"),
        (("--position-embedding-type", "alibi"), "position_embedding_type alibi"),
        (("--reset-attention-mask",), "reset_attention_mask true"),
    ],
)
def test_options_without_a_meaning_for_bert_are_a_problem(flags: tuple[str, ...], name: str) -> None:
    found = [str(problem) for problem in problems(words(*BERT, *flags))]
    assert len(found) == 1
    assert f"BERT can't be with {name}" in found[0]


def test_partition_is_checked_against_the_layers_of_the_family() -> None:
    flags = ("--pipeline-model-parallel-size", "2", "--pp-partition-method", "type:MaskedLmHead")
    assert problems(words(*BERT, *flags), 2) == []
    assert "matches no layer of the model" in str(problems(words(*flags), 2)[0])
