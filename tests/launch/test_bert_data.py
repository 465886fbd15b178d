"""The data of a BERT, from its options to its micro-batches."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from megatron_ds.cli import data_tools
from megatron_ds.cli.preflight import preflight
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import build_run_datasets, samples_needed
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.errors import ConfigError
from megatron_ds.mpu import ModelParallelUnit, Topology
from megatron_ds.training.batches import rank_batches
from tests.data.bert import write_sentences
from tests.launch.helpers import tiny_run
from tests.launch.test_bad_input import environment

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "ran", "away", "home"]
FIRST_WORD = 5


def documents(num_sentences: int) -> list[list[list[int]]]:
    return [[[5, 6, 7, 8 + (document + sentence) % 2] for sentence in range(num_sentences)] for document in range(20)]


def bert_flags(folder: Path, num_sentences: int = 3, **changes: str | None) -> list[str]:
    vocab = folder / "vocab.txt"
    vocab.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    prefix = write_sentences(folder / "a_text_sentence", documents(num_sentences))
    kind = {"tokenizer_type": "BertWordPieceLowerCase", "vocab_file": str(vocab), "vocab_size": None}
    return tiny_run(prefix, **{**kind, **changes})


def bert_run(argv: list[str]) -> RunConfig:
    return preflight(argv, environment(1), "bert")[0].run


def test_bert_run_of_one_sentence_documents_is_refused_without_its_way_out(tmp_path: Path) -> None:
    """D2."""
    argv = bert_flags(tmp_path, num_sentences=1)
    with pytest.raises(ConfigError) as caught:
        bert_run(argv)
    (problem,) = caught.value.problems
    assert "0 usable of 20 documents" in str(problem) and "--bert-no-binary-head" in str(problem)
    assert not bert_run([*argv, "--bert-no-binary-head"]).model.bert_binary_head


def test_bert_run_with_a_tokenizer_of_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        bert_run(bert_flags(tmp_path, tokenizer_type="ByteTokenizer", vocab_file=None))
    (problem,) = caught.value.problems
    assert "the tokenizer has no [CLS]" in str(problem)


def test_bert_run_with_a_tokenizer_that_is_missing_says_it_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        bert_run(bert_flags(tmp_path, vocab_file=str(tmp_path / "nothing.txt")))
    (problem,) = caught.value.problems
    assert "tokenizer file not found" in str(problem)


@pytest.mark.parametrize("binary_head", [True, False])
def test_rank_batches_of_bert_are_its_samples(tmp_path: Path, binary_head: bool) -> None:
    run = bert_run([*bert_flags(tmp_path), *([] if binary_head else ["--bert-no-binary-head"])])
    train = build_run_datasets(run, samples=samples_needed(run), is_builder=True, wait=lambda: None).train
    assert train is not None
    mpu = ModelParallelUnit.offline(Topology(tp_size=1, pp_size=1, dp_size=1), device="cpu")
    batches = [batch for step in islice(rank_batches(run, train, mpu, consumed_samples=4), 2) for batch in step]
    assert all(isinstance(batch, BertBatch) for batch in batches)
    assert torch.cat([batch.tokens for batch in batches]).tolist() == [train[n].tokens.tolist() for n in range(4, 12)]
    assert set(batches[0].targets) == {"lm_loss", *(["sop_loss"] if binary_head else [])}


def test_data_tools_show_and_index_berts_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*bert_flags(tmp_path), "--model-type", "bert"]
    data_tools.main(["build-index", *argv])
    run = bert_run(argv)
    # All that the run needs is built.
    train = build_run_datasets(run, samples=samples_needed(run), is_builder=False, wait=lambda: None).train
    assert train is not None
    capsys.readouterr()
    data_tools.main(["show", "--step", "2", *argv])
    text = capsys.readouterr().out
    assert text.count("--- sample ") == 4
    for number in range(4, 8):
        sample = train[number]
        (masked,) = sample.loss_mask.nonzero()
        expected = ", ".join(f"{place} {WORDS[sample.labels[place]]}" for place in masked)
        assert f"to predict: {expected}\n" in text
    assert "[CLS]" in text and "[MASK]" in text and "second segment first" in text
