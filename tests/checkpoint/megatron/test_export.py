"""What is exported is what Megatron would have written, and comes back bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_ds.checkpoint import new_folder
from megatron_ds.checkpoint.megatron import export_megatron, import_megatron
from megatron_ds.checkpoint.megatron.classic_files import ClassicWriter
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.checkpoint.write import write_checkpoint
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError
from tests.checkpoint.megatron.reference import LAYERS, VOCAB, Gpt
from tests.checkpoint.megatron.test_import import LLAMA, assert_same_logits
from tests.checkpoint.megatron.writers import (
    PADDED,
    classic_stage,
    core_stage,
    write_bloom,
    write_classic,
    write_core,
    write_microsoft,
)


def weights_of(gpt: Gpt, folder: Path) -> ModelWeights:
    """The weights of a reference model, without padding."""
    read = import_megatron(write_core(folder, gpt, 1, 1) if not gpt.post_ln else write_classic(folder, gpt, 1, 1))
    return import_megatron(folder, read.model.model_copy(update={"vocab_size": VOCAB}))


def random_weights(**options: Any) -> ModelWeights:
    """Weights that come from no file of theirs."""
    sizes = {"num_layers": LAYERS, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "vocab_size": VOCAB}
    model = ModelConfig(**{**sizes, "make_vocab_size_divisible_by": 16, **options})
    specs = model_specs(model)
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(spec.full_shape, generator=generator).bfloat16() for name, spec in specs.items()}
    return ModelWeights(model, specs, tensors.__getitem__)


def files_of(folder: Path) -> dict[str, Mapping[str, Any]]:
    paths = sorted(folder.glob("iter_*/*/model_optim_rng.pt"))
    return {path.parent.name: torch.load(path, weights_only=False) for path in paths}


def assert_equal(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, Mapping):
            assert_equal(ours[name], value)
        elif isinstance(value, Tensor):
            assert torch.equal(ours[name], value), name
        else:
            assert ours[name] is value


@pytest.mark.parametrize(
    ("version", "tp", "pp"), [(0.0, 1, 1), (0.0, 2, 1), (1.0, 1, 1), (1.0, 4, 1), (2.0, 2, 2), (3.0, 1, 1), (3.0, 4, 2)]
)
def test_export_of_classic_is_what_megatron_writes(tmp_path: Path, version: float, tp: int, pp: int) -> None:
    gpt = Gpt(post_ln=True)
    weights = weights_of(gpt, tmp_path / "in")
    options = {"tp_size": tp, "pp_size": pp, "layout": "classic", "checkpoint_version": version}
    export_megatron(weights, tmp_path / "out", iteration=7, **options)
    files = files_of(tmp_path / "out")
    assert len(files) == tp * pp
    per_stage = LAYERS // pp
    for stage in range(pp):
        for rank in range(tp):
            content = files[f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")]
            layers = range(stage * per_stage, (stage + 1) * per_stage)
            ends = stage == 0, stage == pp - 1
            expected = classic_stage(gpt, rank, tp, version, layers, *ends, "encoder", "self_attention")
            assert_equal(content["model"], expected)
            assert (content["checkpoint_version"], content["iteration"]) == (version, 7)
            assert content["args"].padded_vocab_size == PADDED
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "7"


@pytest.mark.parametrize("gpt", [Gpt(), Gpt(**LLAMA, qk_norm=True, window=5)], ids=["gpt", "llama"])
@pytest.mark.parametrize("impl", ["local", "transformer_engine"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_export_of_core_is_what_megatron_writes(tmp_path: Path, gpt: Gpt, impl: str, tp: int, pp: int) -> None:
    weights = weights_of(gpt, tmp_path / "in")
    export_megatron(weights, tmp_path / "out", tp_size=tp, pp_size=pp, layout="core", transformer_impl=impl)
    files = files_of(tmp_path / "out")
    assert len(files) == tp * pp
    for stage in range(pp):
        for rank in range(tp):
            content = files[f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")]
            expected = core_stage(gpt, rank, tp, stage, pp, transformer_engine=impl == "transformer_engine")
            assert_equal(content["model"], expected)


BLOOM = Gpt(positions="alibi", embed_norm=True)
BLOOM_GATED = Gpt(positions="rope", activation="geglu")


@pytest.mark.parametrize(
    ("layout", "gpt"),
    [("bloom", BLOOM), ("bloom", BLOOM_GATED), ("microsoft", Gpt()), ("microsoft", Gpt(**LLAMA))],
    ids=["bloom", "bloom, gated", "microsoft", "microsoft, llama"],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_export_of_pipeline_layout_is_what_the_fork_writes(tmp_path: Path, layout: str, gpt: Gpt, tp: int) -> None:
    write = write_bloom if layout == "bloom" else write_microsoft
    theirs = write(tmp_path / "in", gpt, tp)
    described = import_megatron(theirs)
    weights = import_megatron(theirs, described.model.model_copy(update={"vocab_size": VOCAB}))
    export_megatron(weights, tmp_path / "out", tp_size=tp, pp_size=2, layout=layout, iteration=7)
    expected = sorted(path.name for path in theirs.glob("global_step7/layer_*"))
    assert sorted(path.name for path in (tmp_path / "out").glob("global_step7/layer_*")) == expected
    for name in expected:
        file = Path("global_step7") / name
        assert_equal(torch.load(tmp_path / "out" / file), torch.load(theirs / file))
    assert (tmp_path / "out" / "latest").read_text() == "global_step7"
    # One for each rank of a model, as DeepSpeed counts them.
    assert len(list((tmp_path / "out").glob("global_step7/mp_rank_*"))) == 2 * tp
    back = import_megatron(tmp_path / "out")
    assert back.model == weights.model
    assert all(torch.equal(tensor, weights.read(name)) for name, tensor in back.items())


def test_theirs_to_a_checkpoint_of_ours_and_back_gives_their_files(tmp_path: Path) -> None:
    theirs = write_bloom(tmp_path / "in", BLOOM, 4)
    write_checkpoint(tmp_path / "ours", import_megatron(theirs), options={}, precision="fp32", tp_size=2, pp_size=2)
    weights = open_checkpoint(tmp_path / "ours").weights()
    assert_same_logits(weights, BLOOM)
    export_megatron(weights, tmp_path / "out", layout="bloom", tp_size=4, iteration=7)
    files = sorted(path.relative_to(theirs) for path in theirs.glob("global_step7/layer_*"))
    assert len(files) == 4 * (LAYERS + 2)
    for file in files:
        assert_equal(torch.load(tmp_path / "out" / file), torch.load(theirs / file))


MODELS = {
    "classic": {"layout": "classic"},
    "classic, RMSNorm": {
        "layout": "classic",
        **{"normalization": "RMSNorm", "activation": "swiglu", "num_query_groups": 4},
        **{"position_embedding_type": "rope", "untie_embeddings_and_output_weights": True},
    },
    "core": {"layout": "core", "kv_channels": 16, "activation": "gelu"},
    "core, Llama 3.1": {
        "layout": "core",
        **{"normalization": "RMSNorm", "activation": "swiglu", "num_query_groups": 4, "num_attention_heads": 8},
        **{"position_embedding_type": "rope", "use_rope_scaling": True, "rope_scaling_factor": 4.0},
        **{"disable_bias_linear": True, "add_qkv_bias": True, "qk_layernorm": True, "window_size": 6},
    },
    "bloom": {"layout": "bloom", "position_embedding_type": "alibi", "embed_layernorm": True, "activation": "liglu"},
    "microsoft": {"layout": "microsoft", "position_embedding_type": "rope", "rotary_percent": 0.5},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("pp", [1, 2])
def test_export_and_import_give_every_bit_and_option_back(tmp_path: Path, name: str, tp: int, pp: int) -> None:
    options = dict(MODELS[name])
    layout = options.pop("layout")
    weights = random_weights(**options)
    export_megatron(weights, tmp_path, tp_size=tp, pp_size=pp, layout=layout)
    assert len(list(tmp_path.glob("*/mp_rank_*"))) == tp * pp
    back = import_megatron(tmp_path)
    assert back.specs == weights.specs
    for parameter, tensor in back.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, weights.read(parameter)), parameter
    for option, value in options.items():
        assert getattr(back.model, option) == value or option == "num_query_groups"
    assert back.model.num_kv_heads == weights.model.num_kv_heads
    # And with the model given, as it was: nothing in the files says otherwise.
    assert import_megatron(tmp_path, weights.model).model == weights.model


def test_export_of_a_view_writes_no_more_than_the_shard(tmp_path: Path) -> None:
    weights = random_weights()
    export_megatron(weights, tmp_path / "one", tp_size=1)
    export_megatron(weights, tmp_path / "four", tp_size=4)
    sizes = [next((tmp_path / name).glob("iter_*/*/*.pt")).stat().st_size for name in ("one", "four")]
    assert sizes[1] < 0.6 * sizes[0]


def test_export_of_options_without_word_names_all_of_them(tmp_path: Path) -> None:
    weights = random_weights(
        position_embedding_type="alibi", embed_layernorm=True, activation="liglu", residual_connection="parallel"
    )
    with pytest.raises(ConfigError) as error:
        export_megatron(weights, tmp_path, layout="core")
    options = ("position_embedding_type=alibi", "embed_layernorm=True", "activation=liglu", "residual_connection=")
    assert len(error.value.problems) == len(options)
    for option in options:
        assert option in str(error.value)
    assert not list(tmp_path.iterdir())


def test_export_of_what_only_the_other_layout_says_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"qk_layernorm=True.*classic(.|\n)*--layout core"):
        export_megatron(random_weights(qk_layernorm=True), tmp_path, layout="classic")
    with pytest.raises(
        ConfigError, match=r"residual_connection=post_ln.*core(.|\n)*--layout classic or bloom or microsoft"
    ):
        export_megatron(random_weights(residual_connection="post_ln"), tmp_path, layout="core")
    # Without biases core's GELU is exact, and the classic models have a switch for the approximation.
    with pytest.raises(ConfigError, match="activation=gelu_tanh"):
        export_megatron(random_weights(disable_bias_linear=True), tmp_path, layout="core")
    export_megatron(random_weights(disable_bias_linear=True), tmp_path, layout="classic")
    assert import_megatron(tmp_path).model.activation == "gelu_tanh"


def test_export_that_does_not_divide_names_each_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        export_megatron(random_weights(num_query_groups=2, pad_vocab_size_to=62), tmp_path, tp_size=4, pp_size=3)
    for text in ("num_query_groups 2", "padded vocabulary 62", "num_layers 4"):
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint_version": 1.0, "pp_size": 2, "layout": "classic"}, "version 1 has no pipelines"),
        ({"checkpoint_version": 0.0, "layout": "core"}, "files of layout core have checkpoint version 3, not 0"),
        ({"checkpoint_version": 4.0, "layout": "classic"}, "there is no checkpoint version 4"),
    ],
)
def test_export_of_a_version_that_is_not_is_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        export_megatron(random_weights(), tmp_path, **options)


def test_export_of_bloom_with_another_epsilon_or_an_own_head_is_refused(tmp_path: Path) -> None:
    weights = random_weights(
        embed_layernorm=True, layernorm_epsilon=1e-6, untie_embeddings_and_output_weights=True, num_query_groups=2
    )
    with pytest.raises(ConfigError) as error:
        export_megatron(weights, tmp_path, layout="bloom")
    assert len(error.value.problems) == 3
    for option in ("layernorm_epsilon=1e-06", "untie_embeddings_and_output_weights=True", "num_query_groups=2"):
        assert option in str(error.value)


def test_export_into_a_folder_with_a_checkpoint_is_refused(tmp_path: Path) -> None:
    export_megatron(random_weights(), tmp_path, tp_size=4)
    with pytest.raises(CheckpointError, match="exists already, and nothing is overwritten"):
        export_megatron(random_weights(), tmp_path)


def test_export_that_was_killed_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a killed process leaves: its folder is neither renamed nor removed.
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(ClassicWriter, "_content", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        killed.setattr(new_folder.shutil, "rmtree", lambda *_, **__: None)
        export_megatron(random_weights(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    killed_folder = next(tmp_path.iterdir())
    killed_folder.rename(tmp_path / ".out.1.partial")  # another process
    export_megatron(random_weights(), tmp_path / "out")
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").is_file()


def test_export_over_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(CheckpointError, match="out exists already"):
        export_megatron(random_weights(), tmp_path / "out")
