"""A manifest that someone has edited, or that was damaged, gives a message and never a traceback."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.checkpoint.describe import report
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.checkpoint.write import TrainingState, write_checkpoint
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError
from megatron_ds.mpu import Topology

VALUES = (True, None, 0, 1, -1, 2, 3, 7, 1.5, 10**30, "", "x", "../x", "\0", "\ud800", [], [1], {}, {"x": 1})
MUTATIONS = 120


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with a small checkpoint."""
    shape = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 8}
    model = ModelConfig(**shape, vocab_size=61, activation="swiglu")
    specs = model_specs(model, Topology(2, 2))
    weights = ModelWeights(model, specs, lambda name: torch.zeros(specs[name].full_shape))
    part = {"name": "a", "share": 1.0, "documents": [0, 9], "num_tokens": 90, "digest": "ab" * 20}
    order = {"parts": [part], "seq_length": 8, "seed": 1, "dataloader_type": "single", "num_samples": None}
    progress = {"step": 4, "skipped_steps": 1, "consumed_samples": 16}
    state = TrainingState(lambda name, kind: weights.read(name), progress, order, {"cur_scale": 4.0})
    folder = tmp_path_factory.mktemp("saved")
    write_checkpoint(folder, weights, options={}, precision="fp16", tp_size=2, pp_size=2, state=state)
    return folder


def _change(folder: Path, content: Any) -> None:
    (folder / "global_step4/manifest.json").write_text(json.dumps(content))


@pytest.fixture
def manifest(saved: Path) -> Iterator[dict[str, Any]]:
    """The content of the manifest, which is written back afterwards."""
    content = json.loads((saved / "global_step4/manifest.json").read_text())
    yield copy.deepcopy(content)
    _change(saved, content)


def _read_all(folder: Path) -> list[str]:
    found = find_checkpoint(folder)
    reader = CheckpointReader(found.folder / found.tag, found.manifest)
    for name in (*reader.specs,)[::7]:
        reader.read(name)
        reader.read(name, "exp_avg")
    return list(report(reader, files=True))


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value, with each of its keys."""
    if not isinstance(content, dict | list):
        return []
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    return [(content, key) for key in keys] + [place for key in keys for place in _places(content[key])]


def _mutate(content: Any, random_: random.Random) -> None:
    # Each top-level entry as often as another one, whatever its size.
    top = random_.choice(list(content))
    container, key = random_.choice([(content, top), *_places(content[top])])
    if random_.random() < 0.25:
        del container[key]
    else:
        container[key] = copy.deepcopy(random_.choice(VALUES))


def test_manifest_with_random_changes_never_gives_anything_but_a_checkpoint_error(
    saved: Path, manifest: dict[str, Any]
) -> None:
    assert "step 4, 16 samples" in _read_all(saved)[0]
    refused = 0
    for seed in range(MUTATIONS):
        content = copy.deepcopy(manifest)
        _mutate(content, random.Random(seed))
        _change(saved, content)
        try:
            _read_all(saved)
        except CheckpointError as error:
            refused += 1
            assert "\n" not in error.problems[0].message, seed
    assert refused > MUTATIONS / 2


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("files", "layer_00-model_00-model_states.pt"), True, "files.layer_00-model_00-model_states.pt: Input should"),
        (("files", "../x"), {"bytes": 1, "sha256": ""}, "'../x' is no path inside of the folder"),
        (("training_order", "parts", 0, "digest"), 1.5, "training_order.parts.0.digest: Input should be a valid str"),
        (("parameters", "word_embeddings.weight", "full_shape"), "61", "full_shape: Input should be a valid list"),
        (("parameters", "word_embeddings.weight", "dim"), 2, "has no dimension 2"),
        (("parameters", "layers.0.attention.query_key_value.weight", "groups"), 0, "groups: Input should be greater"),
        (("parameters", "layers.0.attention.query_key_value.weight", "groups"), 3, "can't be cut for 2 ranks"),
        (("parameters", "layers.7.x"), {"kind": "replicated", "full_shape": [1]}, "belongs to none of the layers"),
        (("model", "num_layers"), "two", "describes no model that this version knows: num_layers"),
        (("layout", "zero_stage"), 4, "layout.zero_stage: Input should be less"),
        (("layout", "precision"), "fp8", "layout.precision: Input should be 'fp32'"),
        (("stages", 1), [0, 2], "do not cover"),
        (("layout", "pp_size"), 3, "2 stages are not those of PP3"),
        (("progress", "skipped_steps"), 5, "5 steps can't be skipped in 4"),
        (("options", "optimizer"), 3, "options.optimizer: it is no object"),
        (("kind",), {}, "kind: Input should be"),
    ],
)
def test_manifest_with_a_bad_value_is_refused_with_the_place(
    saved: Path, manifest: dict[str, Any], place: tuple[str | int, ...], value: Any, reason: str
) -> None:
    container: Any = manifest
    for key in place[:-1]:
        container = container[key]
    container[place[-1]] = value
    _change(saved, manifest)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(saved)
    assert "no readable manifest" in str(caught.value)
    assert reason in str(caught.value)


def test_reading_a_parameter_that_the_manifest_lost_is_refused_by_its_name(
    saved: Path, manifest: dict[str, Any]
) -> None:
    del manifest["parameters"]["word_embeddings.weight"]
    _change(saved, manifest)
    found = find_checkpoint(saved)
    reader = CheckpointReader(found.folder / found.tag, found.manifest)
    with pytest.raises(CheckpointError, match=r"has no parameter word_embeddings\.weight"):
        reader.read("word_embeddings.weight")
