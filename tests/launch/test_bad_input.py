"""Everything that can be wrong with a run is found together, by what runs before torch and DeepSpeed are imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.cli.preflight import preflight
from megatron_ds.errors import ConfigError, Problem
from tests.data.conftest import write_documents
from tests.launch.helpers import PP, TP, tiny_run, write_corpus


def environment(world_size: int, **more: str) -> dict[str, str]:
    place = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {"WORLD_SIZE": str(world_size), "DS_ACCELERATOR": "cpu", **place, **more}


def problems(argv: list[str], world_size: int = 1, **more: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        preflight(argv, environment(world_size, **more))
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def only_problem(argv: list[str], world_size: int = 1, **more: str) -> str:
    found = problems(argv, world_size, **more)
    assert len(found) == 1, [str(problem) for problem in found]
    return str(found[0])


def write_json(path: Path, content: dict[str, object]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_preflight_of_a_good_run_returns_it(corpus: str) -> None:
    resolved, found = preflight(tiny_run(corpus), environment(2))
    assert (resolved.run.dp_size, resolved.run.model.vocab_size, found) == (2, 64, None)


# Changed flags, more flags, processes, and what the one problem says.
SHAPES = {
    "heads_tp": (
        {"num_attention_heads": "3", "hidden_size": "36"},
        [TP, "2"],
        2,
        ["num_attention_heads 3", "tensor_model_parallel_size 2"],
    ),
    "hidden_heads": ({"hidden_size": "30"}, [], 1, ["hidden_size 30", "num_attention_heads 4"]),
    "ffn_tp": ({"ffn_hidden_size": "33"}, [TP, "2"], 2, ["ffn_hidden_size 33", "tensor_model_parallel_size 2"]),
    "batch_dp": ({"global_batch_size": "5"}, [], 2, ["global batch size 5", "micro_batch_size 1", "size 2"]),
    "batch_dp_under_tp": ({"global_batch_size": "3"}, [TP, "2"], 4, ["global batch size 3", "data-parallel size 2"]),
    "layers_stages": ({"num_layers": "1"}, [PP, "2"], 2, ["1 transformer layer ", "2 pipeline stages"]),
    "ranks_6_tp_4": ({}, [TP, "4"], 6, ["6 processes", "TP 4 x PP 1 = 4", "WORLD_SIZE"]),
    "ranks_4_tp_2_pp_4": ({"num_layers": "4"}, [TP, "2", PP, "4"], 4, ["4 processes", "TP 2 x PP 4 = 8"]),
    "zero_2_pp_2": (
        {"zero_stage": "2"},
        [PP, "2"],
        2,
        ["ZeRO stage 2", "three ways out: ZeRO-1 with this pipeline; or pipeline size 1 with ZeRO-2; or", "TP 1 -> 2"],
    ),
    "zero_3_pp_2": ({"zero_stage": "3"}, [PP, "2"], 2, ["ZeRO stage 3", "three ways out", "ZeRO-1"]),
    "fp16_cpu": ({}, ["--fp16"], 1, ["fp16 needs a GPU", "--bf16, or fp32"]),
    "two_precisions": ({}, ["--fp16", "--bf16"], 1, ["bf16 and fp16 are both on", "--bf16", "--fp16"]),
    "misspelt_flag": (
        {},
        ["--num-atention-heads", "4"],
        1,
        ["--num-atention-heads", "did you mean"],
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shape_that_does_not_fit_is_one_problem_with_its_numbers(case: str, corpus: str) -> None:
    """P10, P15; M3: fp16 on a CPU."""
    changes, more, world_size, expected = SHAPES[case]
    # As on a GPU, so that fp16 beside bf16 is the only thing wrong with it.
    accelerator = "cuda" if case == "two_precisions" else "cpu"
    text = only_problem([*tiny_run(corpus, **changes), *more], world_size, DS_ACCELERATOR=accelerator)
    for words in expected:
        assert words in text


@pytest.mark.parametrize(("layers", "stages"), [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)])
def test_fewer_layers_than_stages_are_refused_however_they_are_dealt(layers: int, stages: int, corpus: str) -> None:
    """P11."""
    method = ["--pp-partition-method", "type:embed|transformer", "--zero-stage", "1"]
    text = only_problem([*tiny_run(corpus, num_layers=str(layers)), *method, PP, str(stages)], stages)
    assert f"{layers} transformer layer" in text
    assert f"{stages} pipeline stages" in text


@pytest.mark.parametrize("layers", ["3", "5"])
def test_uneven_stages_and_a_vocabulary_that_needs_padding_are_legal(layers: str, corpus: str) -> None:
    argv = [*tiny_run(corpus, num_layers=layers, vocab_size="65"), TP, "2", PP, "2"]
    resolved, _ = preflight(argv, environment(4))
    assert resolved.run.model.num_layers == int(layers)


def test_vocabulary_smaller_than_the_tokenizers_is_one_problem(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "bytes", [[100, 200, 256]] * 200)
    argv = tiny_run(str(prefix), vocab_size="100", tokenizer_type="ByteTokenizer")
    text = only_problem([*argv, "--eod-mask-loss"])
    assert "vocab_size 100 is smaller than the tokenizer's vocabulary of 257 ids" in text
    assert "give 257 or more" in text


def test_misspelt_key_of_the_deepspeed_json_is_refused_with_the_nearest_one(corpus: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "ds.json", {"gradient_cliping": 0.5})
    text = only_problem([*tiny_run(corpus), "--deepspeed_config", file])
    assert "gradient_cliping" in text
    assert "gradient_clipping" in text
    assert "ds.json" in text


def test_misspelt_key_of_our_block_is_refused_with_the_nearest_one(corpus: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "ds.json", {"megatron_ds": {"model": {"num_layer": 2}}})
    text = only_problem([*tiny_run(corpus), "--deepspeed_config", file])
    assert "num_layer" in text
    assert "num_layers" in text


def test_flag_and_deepspeed_json_that_differ_are_a_problem_with_both_places(corpus: str, tmp_path: Path) -> None:
    file = write_json(tmp_path / "ds.json", {"gradient_clipping": 0.5})
    text = only_problem([*tiny_run(corpus, clip_grad="0.1"), "--deepspeed_config", file])
    for words in ("0.5", "0.1", "--clip-grad", "ds.json: gradient_clipping"):
        assert words in text


RESETS = ["--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"]


@pytest.mark.parametrize("switch", RESETS)
@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [([], "no tokenizer is given"), (["--tokenizer-type", "NullTokenizer"], "NullTokenizer has no token for that")],
)
def test_switch_about_documents_without_an_eod_is_refused(
    switch: str, tokenizer: list[str], why: str, corpus: str
) -> None:
    text = only_problem([*tiny_run(corpus), *tokenizer, switch])
    for words in (f"the id that ends a document is not known, for {why}", f"from {switch}", "--eod-id"):
        assert words in text


def test_eod_of_the_tokenizer_reaches_the_run_that_needs_it(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "bytes", last_token=256)
    argv = [*tiny_run(corpus, vocab_size=None), "--tokenizer-type", "ByteTokenizer"]
    for switch in RESETS:
        resolved, _ = preflight([*argv, switch], environment(1))
        assert resolved.run.data.eod_id == 256
        assert resolved.origins["data.eod_id"] == "derived: the tokenizer"
    assert preflight(argv, environment(1))[0].run.data.eod_id is None


def test_eod_id_0_is_an_id(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "zeros", last_token=0)
    resolved, _ = preflight([*tiny_run(corpus), "--eod-id", "0", *RESETS], environment(1))
    assert resolved.run.data.eod_id == 0


def test_eod_id_that_is_not_the_tokenizers_is_refused(corpus: str) -> None:
    argv = [*tiny_run(corpus, vocab_size=None), "--tokenizer-type", "ByteTokenizer", "--eod-id", "7", *RESETS]
    text = only_problem(argv)
    assert "eod_id 7 is not the tokenizer's end-of-document id 256" in text
    assert "from --eod-id" in text


def test_eod_id_beyond_the_vocabulary_is_refused(corpus: str) -> None:
    argv = [*tiny_run(corpus), "--eod-id", "64", "--eod-mask-loss"]
    assert "eod_id 64 is outside of the vocabulary of 64 ids" in str(problems(argv)[0])


@pytest.mark.parametrize(("train_batch", "fits"), [(4, True), (16, False), (8, False)])
def test_batch_triple_is_checked_against_the_data_parallel_size_not_the_processes(
    train_batch: int, fits: bool, corpus: str, tmp_path: Path
) -> None:
    # 8 processes are 2 data-parallel replicas here: 1 x 2 x 2 = 4, and 16 is the product with all processes.
    triple = {"train_batch_size": train_batch, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    file = write_json(tmp_path / "ds.json", triple)
    run = tiny_run(corpus, global_batch_size=None, micro_batch_size=None)
    argv = [*run, TP, "2", PP, "2", "--deepspeed_config", file]
    if fits:
        assert preflight(argv, environment(8))[0].run.global_batch_size == train_batch
        return
    text = only_problem(argv, 8)
    for words in ("= 4", str(train_batch), "ds.json: train_batch_size", "ds.json: gradient_accumulation_steps"):
        assert words in text


def test_missing_data_files_are_named(tmp_path: Path) -> None:
    text = only_problem(tiny_run(str(tmp_path / "nowhere")))
    assert "nowhere.bin" in text
    assert "nowhere.idx" in text
    assert "megatron-ds preprocess" in text


def test_corpus_shorter_than_one_sample_is_refused_with_both_lengths(tmp_path: Path) -> None:
    short = write_corpus(tmp_path / "short_text_document", num_documents=4, document_length=4)
    text = only_problem(tiny_run(short, split="100,0,0", eval_iters="0", seq_length="32"))
    assert "16 tokens" in text
    assert "32" in text


def run_folder(folder: Path, tag: str = "global_step2") -> Path:
    """A folder that another run has saved into."""
    (folder / tag).mkdir(parents=True)
    (folder / "latest").write_text(tag)
    return folder


def test_load_of_a_missing_folder_is_refused(corpus: str, tmp_path: Path) -> None:
    assert "no folder" in only_problem(tiny_run(corpus, load=str(tmp_path / "typo")))


def test_load_of_a_folder_without_latest_is_refused_unless_a_fresh_start_is_allowed(
    corpus: str, tmp_path: Path
) -> None:
    argv = tiny_run(corpus, load=str(tmp_path))
    text = only_problem(argv)
    assert "latest" in text
    assert "--allow-fresh-start" in text
    _, found = preflight([*argv, "--allow-fresh-start"], environment(1))
    assert found is None


def test_load_of_a_tag_that_is_gone_is_refused_though_a_fresh_start_is_allowed(corpus: str, tmp_path: Path) -> None:
    (run_folder(tmp_path) / "global_step2").rmdir()
    text = only_problem([*tiny_run(corpus, load=str(tmp_path)), "--allow-fresh-start"])
    assert "'global_step2'" in text
    assert str(tmp_path / "latest") in text


def test_save_into_the_folder_of_another_run_is_refused(corpus: str, tmp_path: Path) -> None:
    text = only_problem(tiny_run(corpus, save=str(run_folder(tmp_path))))
    assert "another run" in text
    assert f"--load {tmp_path}" in text


def test_several_problems_of_all_kinds_are_one_numbered_report(tmp_path: Path) -> None:
    changes = {"hidden_size": "30", "num_layers": "1", "zero_stage": "2", "global_batch_size": "5", "lrr": "1"}
    argv = [*tiny_run(str(tmp_path / "nowhere"), **changes, load=str(tmp_path / "typo")), "--fp16", PP, "2"]
    with pytest.raises(ConfigError) as caught:
        preflight(argv, environment(4))
    report = str(caught.value)
    expected = ("hidden_size 30", "1 transformer layer", "ZeRO stage 2", "global batch size 5", "--lrr", "fp16 needs")
    for words in (*expected, "no folder", "nowhere.idx"):
        assert report.count(words) >= 1, words
    count = len(caught.value.problems)
    assert count == 8
    assert report.startswith(f"ConfigError: {count} problems\n1. ")
    assert f"\n{count}. " in report


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_process_that_does_not_know_its_place_is_refused(missing: str, corpus: str) -> None:
    environ = environment(2)
    del environ[missing]
    with pytest.raises(ConfigError, match=f"lacks {missing}: "):
        preflight(tiny_run(corpus), environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "x"),
        ("RANK", "9" * 5000),
        ("RANK", "2"),
        ("LOCAL_RANK", "2"),
        ("MASTER_PORT", "abc"),
        ("MASTER_PORT", "70000"),
    ],
)
def test_place_that_is_no_number_in_range_is_refused(name: str, value: str, corpus: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a whole number below"):
        preflight(tiny_run(corpus), {**environment(2), name: value})


def test_mpi_launcher_that_leaves_world_size_unset_is_refused(corpus: str) -> None:
    with pytest.raises(ConfigError, match="Open MPI started 4 processes, and WORLD_SIZE is not set"):
        preflight(tiny_run(corpus), {"DS_ACCELERATOR": "cpu", "OMPI_COMM_WORLD_SIZE": "4"})


@pytest.mark.parametrize("size", ["0", "-1", "two"])
def test_world_size_that_is_no_count_is_refused(size: str, corpus: str) -> None:
    assert f"WORLD_SIZE={size}" in only_problem(tiny_run(corpus), WORLD_SIZE=size)


def test_padded_size_below_the_vocabulary_of_the_tokenizer_refused(corpus: str) -> None:
    changes = {"tokenizer_type": "ByteTokenizer", "vocab_size": None, "pad_vocab_size_to": "256"}
    assert "pad_vocab_size_to 256 is less than the vocabulary of 257 ids" in only_problem(tiny_run(corpus, **changes))
    resolved, _ = preflight(tiny_run(corpus, **{**changes, "pad_vocab_size_to": "257"}), environment(1))
    assert resolved.run.model.padded_vocab_size(1) == 257


@pytest.mark.parametrize("rank", ["0", "1", "3"])
def test_corpus_of_five_tokens_is_refused_on_every_rank_before_a_model_is_built(tmp_path: Path, rank: str) -> None:
    prefix = write_documents(tmp_path / "small", [[1, 2, 3, 4, 5]])
    argv = tiny_run(prefix, seq_length="16", split="100,0,0")
    text = only_problem(argv, 4, RANK=rank, LOCAL_RANK=rank)
    assert "dataset has 5 tokens, needs at least 17" in text


def test_training_data_as_validation_data_is_refused(corpus: str) -> None:
    """D15."""
    argv = tiny_run(corpus, split=None, train_data_path=corpus, valid_data_path=corpus)
    place = argv.index("--data-path")
    text = only_problem(argv[:place] + argv[place + 2 :], 2)
    assert "are both training and valid data" in text
