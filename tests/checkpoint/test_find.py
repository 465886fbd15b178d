from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.checkpoint import (
    Layout,
    Manifest,
    changed_options,
    checkpoint_problems,
    find_checkpoint,
    point_latest_at,
    training_order_problems,
)
from megatron_ds.config import resolve
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import TrainingOrder
from megatron_ds.errors import CheckpointError
from tests.config.helpers import environ, words
from tests.data.conftest import numbered_documents, write_documents


def _run(*flags: str, world_size: int = 1) -> RunConfig:
    return resolve(words("--vocab-size", "61", *flags), environ(world_size), "test").run


def _save(folder: Path, run: RunConfig, step: int = 4) -> Path:
    checkpoint = folder / f"global_step{step}"
    checkpoint.mkdir(parents=True)
    progress = {"step": step, "skipped_steps": 0, "consumed_samples": 4 * step}
    Manifest(progress, Layout.of(run), run.model.model_dump(), {}, run.model_dump()).write(checkpoint)
    point_latest_at(folder, checkpoint.name)
    return checkpoint


def _change_manifest(folder: Path, **changes: object) -> None:
    file = folder / "global_step4/manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_find_checkpoint_reads_back_what_was_saved(tmp_path):
    run = _run()
    _save(tmp_path, run)
    found = find_checkpoint(tmp_path)
    assert found.tag == "global_step4"
    assert found.manifest.progress["step"] == 4
    assert found.manifest.layout == Layout.of(run)
    assert found.manifest.model == run.model.model_dump()


@pytest.mark.parametrize(
    ("damage", "words_of_the_error"),
    [
        (lambda folder: folder.rename(folder.with_name("moved")), ["there is no folder", "--load"]),
        (lambda folder: (folder / "latest").unlink(), ["no file named latest", "whole checkpoints here: global_step4"]),
        (lambda folder: (folder / "latest").write_text("global_step9"), ["global_step9", "global_step4"]),
        (lambda folder: (folder / "global_step4/manifest.json").write_text("{"), ["no readable manifest"]),
        (lambda folder: (folder / "global_step4/manifest.json").write_text("[]"), ["format version 2"]),
        (lambda folder: (folder / "latest").write_bytes(b"\xff\xfe"), ["latest can't be read", "global_step4"]),
        (lambda folder: _change_manifest(folder, model=None), ["model: Input should be a valid dictionary"]),
        (
            lambda folder: _change_manifest(folder, progress={"step": "4", "skipped_steps": 0, "consumed_samples": 0}),
            ["progress.step: Input should be a valid integer"],
        ),
    ],
)
def test_find_checkpoint_of_a_damaged_folder_says_what_is_missing(tmp_path, damage, words_of_the_error):
    folder = tmp_path / "run"
    _save(folder, _run())
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(folder)
    for word in words_of_the_error:
        assert word in str(caught.value)


def test_load_that_finds_nothing_is_a_problem_unless_a_fresh_start_is_allowed(tmp_path):
    found, problems = checkpoint_problems(_run("--load", str(tmp_path)), {})
    assert found is None
    assert "--allow-fresh-start" in problems[0].advice
    _, (missing,) = checkpoint_problems(_run("--load", str(tmp_path / "first")), {})
    assert "there is no folder" in missing.message and "--allow-fresh-start" in missing.advice
    found, problems = checkpoint_problems(_run("--load", str(tmp_path), "--allow-fresh-start"), {})
    assert (found, problems) == (None, [])


def test_load_at_another_layout_and_precision_goes_on(tmp_path):
    _save(tmp_path, _run())
    flags = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--bf16")
    found, problems = checkpoint_problems(_run("--load", str(tmp_path), *flags, world_size=4), {})
    assert problems == []
    assert found is not None
    assert found.manifest.layout != Layout.of(_run(*flags, world_size=4))


def test_load_with_other_padding_of_the_vocabulary_goes_on(tmp_path):
    _save(tmp_path, _run())
    flags = ("--load", str(tmp_path), "--make-vocab-size-divisible-by", "7")
    assert checkpoint_problems(_run(*flags), {})[1] == []


def test_load_step_takes_that_step_and_names_the_others_where_it_is_missing(tmp_path):
    for step in (2, 4):
        _save(tmp_path, _run(), step)
    found, problems = checkpoint_problems(_run("--load", str(tmp_path), "--load-step", "2"), {})
    assert found is not None
    assert (found.tag, problems) == ("global_step2", [])
    found, problems = checkpoint_problems(_run("--load", str(tmp_path), "--load-step", "3"), {})
    assert found is None
    assert "holds no checkpoint of step 3" in problems[0].message
    assert "global_step2, global_step4" in problems[0].message


def test_load_of_a_checkpoints_own_folder_takes_that_one(tmp_path):
    for step in (2, 4):
        _save(tmp_path, _run(), step)
    found, problems = checkpoint_problems(_run("--load", str(tmp_path / "global_step2")), {})
    assert found is not None
    assert (found.folder, found.tag, problems) == (tmp_path, "global_step2", [])
    flags = ("--load", str(tmp_path / "global_step2"), "--save", str(tmp_path))
    assert checkpoint_problems(_run(*flags), {})[1] == []
    assert "another folder" in checkpoint_problems(_run(*flags, "--finetune"), {})[1][0].advice


@pytest.mark.parametrize(("damage", "words"), [("missing", "is missing"), ("cut", "has 3 bytes instead of 5")])
def test_load_of_a_checkpoint_with_a_missing_or_short_file_is_refused_by_its_name(tmp_path, damage, words):
    checkpoint = _save(tmp_path, _run())
    file = checkpoint / "layer_00-model_00-model_states.pt"
    file.write_bytes(b"12345")
    _change_manifest(tmp_path, files={file.name: {"bytes": 5, "sha256": "0"}})
    assert checkpoint_problems(_run("--load", str(tmp_path)), {})[1] == []
    file.unlink() if damage == "missing" else file.write_bytes(b"123")
    _, (problem,) = checkpoint_problems(_run("--load", str(tmp_path)), {})
    assert f"{file.name} {words}" in problem.message
    assert "--load-step" in problem.advice


def test_finetune_into_the_folder_that_it_loads_from_is_refused(tmp_path):
    _save(tmp_path, _run())
    flags = ("--load", str(tmp_path), "--save", str(tmp_path))
    assert checkpoint_problems(_run(*flags), {})[1] == []
    _, (problem,) = checkpoint_problems(_run(*flags, "--finetune"), {})
    assert "another folder to --save" in problem.advice


def test_load_of_another_model_is_refused_with_the_options_that_differ(tmp_path):
    _save(tmp_path, _run())
    _, problems = checkpoint_problems(
        _run("--load", str(tmp_path), "--num-layers", "3"), {"model.num_layers": "--num-layers"}
    )
    assert "num_layers" in problems[0].message
    assert {(source.value, source.origin) for source in problems[0].sources} >= {("3", "--num-layers")}


def test_load_with_another_dropout_goes_on(tmp_path):
    _save(tmp_path, _run())
    found, problems = checkpoint_problems(_run("--load", str(tmp_path), "--hidden-dropout", "0.3"), {})
    assert found is not None
    assert problems == []


def test_load_with_another_sequence_length_needs_the_same_number_of_positions(tmp_path):
    _save(tmp_path, _run())  # 16 tokens, and so 16 positions
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--seq-length", "8"), {})
    assert "max_position_embeddings" in problems[0].message
    flags = ("--seq-length", "8", "--max-position-embeddings", "16")
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), *flags), {})
    assert problems == []


def test_save_into_another_runs_folder_is_refused_and_into_the_loaded_one_is_not(tmp_path):
    _save(tmp_path, _run())
    _, problems = checkpoint_problems(_run("--save", str(tmp_path)), {})
    assert "already holds another run's checkpoints" in problems[0].message
    _, problems = checkpoint_problems(_run("--save", str(tmp_path), "--load", str(tmp_path)), {})
    assert problems == []


def test_manifest_of_a_later_format_is_refused(tmp_path):
    checkpoint = _save(tmp_path, _run())
    content = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps({**content, "format_version": 3}))
    with pytest.raises(CheckpointError, match="format version 2"):
        find_checkpoint(tmp_path)


def test_folder_whose_checkpoints_lost_their_tracker_is_not_taken_for_a_fresh_one(tmp_path):
    _save(tmp_path, _run())
    (tmp_path / "latest").unlink()
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--allow-fresh-start"), {})
    assert "whole checkpoints here: global_step4" in problems[0].message
    _, problems = checkpoint_problems(_run("--save", str(tmp_path)), {})
    assert "already holds another run's checkpoints" in problems[0].message


def test_save_below_a_file_is_refused_with_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    _, problems = checkpoint_problems(_run("--save", str(tmp_path / "file/run")), {})
    assert f"{tmp_path / 'file'} is not a folder" in problems[0].message


def test_load_with_the_derived_ffn_size_spelt_out_goes_on(tmp_path):
    _save(tmp_path, _run())
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--ffn-hidden-size", "128"), {})
    assert problems == []
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--ffn-hidden-size", "64"), {})
    assert "ffn_hidden_size" in problems[0].message


def test_load_with_derived_model_options_spelt_out_goes_on(tmp_path):
    _save(tmp_path, _run("--swiglu"))
    flags = ("--swiglu", "--ffn-hidden-size", "64", "--kv-channels", "8", "--num-query-groups", "4")
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), *flags), {})
    assert problems == []


def test_load_with_another_block_is_refused_with_the_options_that_differ(tmp_path):
    _save(tmp_path, _run("--parallel-residual"))
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--position-embedding-type", "rope"), {})
    for name in ("residual_connection", "position_embedding_type", "max_position_embeddings"):
        assert name in problems[0].message


def test_load_of_a_checkpoint_from_before_an_option_has_its_default(tmp_path):
    run = _run()
    old = {name: getattr(run.model, name) for name in ("num_layers", "hidden_size", "num_attention_heads")}
    old |= {"seq_length": 16, "ffn_hidden_size": None, "max_position_embeddings": None, "vocab_size": 61}
    _save(tmp_path, run)
    _change_manifest(tmp_path, model=old)
    assert checkpoint_problems(_run("--load", str(tmp_path)), {})[1] == []
    _, problems = checkpoint_problems(_run("--load", str(tmp_path), "--qk-layernorm"), {})
    assert "qk_layernorm" in problems[0].message


def test_load_of_a_manifest_with_an_unknown_model_option_is_refused(tmp_path):
    run = _run()
    _save(tmp_path, run)
    _change_manifest(tmp_path, model={**run.model.model_dump(), "spirals": 3})
    _, problems = checkpoint_problems(_run("--load", str(tmp_path)), {})
    assert "describes no model that this version knows" in problems[0].message
    assert "spirals" in problems[0].message


def test_load_of_a_model_without_learned_positions_goes_on_with_another_length(tmp_path):
    _save(tmp_path, _run("--position-embedding-type", "rope"))
    flags = ("--position-embedding-type", "rope", "--seq-length", "32")
    assert checkpoint_problems(_run("--load", str(tmp_path), *flags), {})[1] == []


def test_options_that_changed_since_the_checkpoint_are_told(tmp_path):
    _save(tmp_path, _run())
    found = find_checkpoint(tmp_path)
    assert changed_options(found, _run()) == []
    assert changed_options(found, _run("--lr", "5e-3", "--seed", "7", "--save", "elsewhere")) == [
        "training.seed: 1234 -> 7",
        "optimizer.lr: 0.001 -> 0.005",
    ]
    assert changed_options(found, _run("--eod-id", "0", "--reset-position-ids", "--eod-mask-loss")) == [
        "data.eod_id: null -> 0",
        "data.reset_position_ids: false -> true",
        "data.eod_mask_loss: false -> true",
    ]
    # The decay ends with the run unless something else is said.
    assert changed_options(found, _run("--train-iters", "9", "--lr-decay-iters", "6")) == [
        "training.train_iters: 6 -> 9"
    ]


def _order_problems(folder: Path, saved: RunConfig, now: RunConfig) -> list[str]:
    checkpoint = _save(folder, saved)
    file = checkpoint / "manifest.json"
    content = json.loads(file.read_text())
    content["training_order"] = json.loads(json.dumps(TrainingOrder.of(saved).to_json()))
    file.write_text(json.dumps(content))
    return [str(problem) for problem in training_order_problems(find_checkpoint(folder), now, TrainingOrder.of(now))]


def test_resume_with_other_blend_weights_is_refused_unless_asked_for(tmp_path):
    """D10."""
    a, b = (write_documents(tmp_path / name, numbered_documents([40] * 9)) for name in "ab")
    saved = _run("--data-path", "1", a, "1", b)
    now = _run("--data-path", "2", a, "1", b)
    (problem,) = _order_problems(tmp_path / "run", saved, now)
    assert "after 16 consumed samples the order would be another one" in problem
    assert "50.0000% of a 0:9" in problem
    assert "66.6667% of a 0:9" in problem
    assert "--allow-data-change" in problem
    asked = _run("--data-path", "2", a, "1", b, "--allow-data-change", "--load", str(tmp_path / "run"))
    assert _order_problems(tmp_path / "asked", saved, asked) == []


def test_checkpoint_of_another_family_is_one_problem(tmp_path):
    data = ("--data-path", write_documents(tmp_path / "a", numbered_documents([40] * 9)))
    gpt, bert = _run(*data), _run(*data, "--model-type", "bert")
    assert _order_problems(tmp_path / "bert", bert, gpt) == _order_problems(tmp_path / "gpt", gpt, bert) == []
    _, problems = checkpoint_problems(_run(*data, "--load", str(tmp_path / "bert")), {})
    assert ["model_type" in str(problem) for problem in problems] == [True]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--seed", "5"), "seed: 1234 -> 5"),
        (("--split", "8,1,1"), "0:7"),
        (("--dataloader-type", "cyclic"), "dataloader_type: single -> cyclic"),
        (("--seq-length", "8"), "seq_length: 16 -> 8"),
    ],
)
def test_resume_in_another_order_names_what_changed(tmp_path, flags, named):
    prefix = write_documents(tmp_path / "a", numbered_documents([40] * 9))
    (problem,) = _order_problems(tmp_path / "run", _run("--data-path", prefix), _run("--data-path", prefix, *flags))
    assert named in problem


def test_resume_with_other_batches_more_steps_or_moved_data_goes_on(tmp_path):
    prefix = write_documents(tmp_path / "a", numbered_documents([40] * 9))
    (tmp_path / "moved").mkdir()
    moved = write_documents(tmp_path / "moved" / "a", numbered_documents([40] * 9))
    saved = _run("--data-path", "3", prefix)
    now = _run("--data-path", "7", moved, "--global-batch-size", "8", "--train-iters", "99", "--eval-iters", "1")
    assert _order_problems(tmp_path / "run", saved, now) == []


def test_resume_on_data_that_was_written_anew_with_the_same_numbers_is_refused(tmp_path):
    documents = [list(range(start, start + 10 + start % 7)) for start in range(40)]
    prefix = write_documents(tmp_path / "a", documents)
    (tmp_path / "new").mkdir()
    anew = write_documents(tmp_path / "new" / "a", documents[::-1])
    saved = _run("--data-path", prefix)
    for lengths_too in (True, False):
        if not lengths_too:
            write_documents(tmp_path / "new" / "a", [[0] * len(each) for each in documents])
        (problem,) = _order_problems(tmp_path / f"run{lengths_too}", saved, _run("--data-path", anew))
        assert "data: 100.0000% of a" in problem
