"""BERT in Megatron's files: what is read computes a textbook model, what is written is what Megatron would write."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_ds.checkpoint.huggingface import compare_logits, export_huggingface
from megatron_ds.checkpoint.huggingface.architectures import choose_architecture
from megatron_ds.checkpoint.megatron import export_megatron, import_megatron
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError, ConfigError
from megatron_ds.models import SequentialModel, model_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.checkpoint.megatron.bert import CLASSES, Bert
from tests.checkpoint.megatron.reference import LAYERS, VOCAB, Gpt
from tests.checkpoint.megatron.test_export import assert_equal, files_of, random_weights
from tests.checkpoint.megatron.writers import classic_stage, core_stage, write_classic, write_core


def _assert_same_scores(weights: ModelWeights, bert: Bert) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens, types = (torch.randint(end, (3, 12), generator=generator) for end in (VOCAB, 2))
    mask = (torch.arange(12) < torch.tensor([[12], [9], [5]])).long()
    model = SequentialModel(model_layers(weights.model, ModelParallelUnit.offline())).eval()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.specs.keys()
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(shard_spec(parameters[name]).shard(tensor, 0, 1))
        outputs = model((tokens, types, mask))
    expected = bert.scores(tokens, types, mask)
    for ours, theirs in zip(outputs if isinstance(outputs, tuple) else (outputs,), expected, strict=True):
        assert float(theirs.std()) > 0.1
        torch.testing.assert_close(_that_counts(ours, mask), _that_counts(theirs, mask), rtol=0, atol=1e-5)


def _that_counts(scores: Tensor, mask: Tensor) -> Tensor:
    """Without padding of the samples and of the vocabulary; scores of samples as they are."""
    return scores.transpose(0, 1)[mask.bool()][:, :VOCAB] if scores.dim() > 2 else scores


def _write(folder: Path, bert: Bert, tp: int, pp: int, version: float, **more: Any) -> Path:
    old = {"stack": "transformer", "attention": "attention"} if version < 2 else {}
    return write_classic(folder, bert, tp, pp, version, **old, **more)


# A model, its layout and version, and options of ours.
CASES: dict[str, tuple[Bert, tuple[int, int, float], dict[str, Any]]] = {
    "both heads, version 0": (Bert(), (2, 1, 0), {"output_head": "lm", "bert_binary_head": True, "num_tokentypes": 2}),
    "both heads, version 1": (Bert(), (1, 1, 1), {"output_head": "lm"}),
    "post-LN, stages": (Bert(post_ln=True), (2, 2, 2), {"residual_connection": "post_ln", "activation": "gelu"}),
    "masked tokens": (Bert(head="lm"), (2, 2, 3), {"bert_binary_head": False, "num_tokentypes": 0}),
    "classes": (Bert(head="classification"), (2, 2, 3), {"output_head": "classification", "num_classes": CLASSES}),
    "choices": (Bert(head="multichoice"), (2, 1, 0), {"output_head": "multiple_choice", "num_classes": None}),
    "no head": (Bert(head="none"), (1, 2, 3), {"output_head": "none", "bert_binary_head": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_classic_bert_computes_the_reference_and_comes_back_as_megatron_writes_it(name: str, tmp_path: Path) -> None:
    bert, (tp, pp, version), options = CASES[name]
    weights = import_megatron(_write(tmp_path / "in", bert, tp, pp, version))
    for option, value in {"model_type": "bert", **options}.items():
        assert getattr(weights.model, option) == value
    _assert_same_scores(weights, bert)

    weights = import_megatron(tmp_path / "in", weights.model.model_copy(update={"vocab_size": VOCAB}))
    assert weights.model.vocab_size == VOCAB
    written = {"tp_size": tp, "pp_size": pp, "layout": "classic", "checkpoint_version": float(version)}
    export_megatron(weights, tmp_path / "out", **written)
    files = files_of(tmp_path / "out")
    assert len(files) == tp * pp
    per_stage = LAYERS // pp
    for stage in range(pp):
        for rank in range(tp):
            content = files[f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")]
            layers = range(stage * per_stage, (stage + 1) * per_stage)
            ends = stage == 0, stage == pp - 1
            assert_equal(
                content["model"], classic_stage(bert, rank, tp, version, layers, *ends, "encoder", "self_attention")
            )
    assert import_megatron(tmp_path / "out").model == weights.model


def test_post_ln_of_megatron_is_that_of_transformers(tmp_path: Path) -> None:
    bert = Bert(post_ln=True)
    weights = import_megatron(write_classic(tmp_path / "in", bert, 2, 1))
    _assert_same_scores(weights, bert)
    exported = export_huggingface(weights, tmp_path / "out", data={}, kept=tmp_path / "nothing")
    assert exported.architecture.name == "BertForPreTraining"
    assert compare_logits(weights, tmp_path / "out", torch.float32).largest_difference <= 1e-5
    with pytest.raises(ConfigError, match="--residual-connection pre_ln can't be written as BertForPreTraining"):
        choose_architecture(import_megatron(write_classic(tmp_path / "pre", Bert(), 1, 1)).model)


@pytest.mark.parametrize(("tp", "pp", "transformer_engine"), [(1, 1, True), (2, 2, False)])
def test_core_bert_computes_the_reference_and_comes_back_as_megatron_writes_it(
    tmp_path: Path, tp: int, pp: int, transformer_engine: bool
) -> None:
    bert = Bert()
    read = import_megatron(write_core(tmp_path / "in", bert, tp, pp, transformer_engine=transformer_engine))
    _assert_same_scores(read, bert)
    weights = import_megatron(tmp_path / "in", read.model.model_copy(update={"vocab_size": VOCAB}))
    impl = "transformer_engine" if transformer_engine else "local"
    export_megatron(weights, tmp_path / "out", tp_size=tp, pp_size=pp, layout="core", transformer_impl=impl)
    for stage in range(pp):
        for rank in range(tp):
            content = files_of(tmp_path / "out")[f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")]
            expected = core_stage(bert, rank, tp, stage, pp, transformer_engine=transformer_engine)
            assert_equal(content["model"], expected)


def test_gelu_of_the_head_is_named_where_it_is_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bert = Bert(activation="gelu_tanh")
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        # Megatron's default: the fused kernel approximates, the head doesn't.
        weights = import_megatron(write_classic(tmp_path / "fused", bert, 1, 1))
    assert ["the head of masked tokens has the exact GELU there" in message for message in caplog.messages] == [True]
    caplog.clear()
    with caplog.at_level(logging.INFO, "megatron_ds"):
        export_megatron(weights, tmp_path / "out", layout="classic")
        _assert_same_scores(import_megatron(tmp_path / "out"), bert)
    (content,) = files_of(tmp_path / "out").values()
    assert (content["args"].openai_gelu, content["args"].bias_gelu_fusion) == (True, False)
    assert any("--openai-gelu" in message for message in caplog.messages)
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)


_BERT = {"model_type": "bert"}


@pytest.mark.parametrize(
    ("options", "layout", "text"),
    [
        ({**_BERT, "output_head": "none"}, "core", r"output_head=none(.|\n)*--layout classic"),
        (_BERT, "core", r"activation=gelu_tanh(.|\n)*--layout classic"),
        (_BERT, "bloom", r"model_type=bert(.|\n)*--layout classic"),
        ({**_BERT, "num_tokentypes": 3}, "classic", "num_tokentypes=3(.|\n)*no layout has words"),
        ({**_BERT, "bert_binary_head": False, "num_tokentypes": 2}, "classic", "num_tokentypes=2"),
    ],
)
def test_export_of_a_bert_that_a_layout_has_not_is_refused(
    options: dict[str, Any], layout: str, text: str, tmp_path: Path
) -> None:
    weights = random_weights(**options)
    with pytest.raises(ConfigError, match=text):
        export_megatron(weights, tmp_path / "out", layout=layout)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("bert", "gpt"), [(Bert(), True), (Bert(head="classification"), False)])
def test_import_as_another_model_names_what_differs(bert: Bert, gpt: bool, tmp_path: Path) -> None:
    given = import_megatron(write_classic(tmp_path / "other", Gpt(activation="gelu") if gpt else Bert(), 1, 1)).model
    what = "model_type is gpt and there bert" if gpt else "output_head is lm and there classification"
    with pytest.raises(CheckpointError, match=what):
        import_megatron(write_classic(tmp_path / "in", bert, 1, 1), given)
