"""Documents that don't see each other, from the command line to the loss."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from megatron_ds.cli.preflight import preflight
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import build_gpt_datasets, samples_needed
from megatron_ds.models import SequentialModel, gpt_layers, initialize_weights
from megatron_ds.mpu import ModelParallelUnit
from tests.launch.helpers import PRETRAIN, VOCAB_SIZE, clean_environment, fork, losses, tiny_run, write_corpus

EOD = VOCAB_SIZE - 1


@torch.no_grad()
def _first_loss(run: RunConfig) -> float:
    """The loss of the first global batch when each document is fed to the model alone."""
    datasets = build_gpt_datasets(
        run.data,
        seq_length=run.model.seq_length,
        seed=run.training.seed,
        samples=samples_needed(run),
        is_builder=True,
        wait=lambda: None,
    )
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(gpt_layers(run.model, mpu))
    initialize_weights(model.named_parameters(), run.training.seed, mpu)
    token_losses = []
    assert datasets.train is not None
    for sample in islice(datasets.train, run.global_batch_size):
        tokens, labels = torch.from_numpy(sample[:-1]), torch.from_numpy(sample[1:])
        ends = [place + 1 for place, token in enumerate(tokens.tolist()) if token == EOD]
        assert len(ends) > 1, "a sample has several documents"
        for part, wanted in zip(tokens.tensor_split(ends), labels.tensor_split(ends), strict=True):
            if len(part):
                scores = model(part.unsqueeze(0))[:, 0, :VOCAB_SIZE]
                token_losses.append(F.cross_entropy(scores, wanted, reduction="none")[part != EOD])
    return float(torch.cat(token_losses).mean())


@pytest.mark.slow
def test_first_loss_of_a_run_is_that_of_each_document_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "short", num_documents=400, document_length=5, last_token=EOD)
    switches = ["--eod-id", str(EOD), "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"]
    # Weights that are large enough for the context to matter.
    argv = [*tiny_run(corpus, micro_batch_size="2", init_method_std="0.2"), "--num-workers", "1"]
    for name, words in {"documents": [*argv, *switches], "plain": argv}.items():
        finished = fork(1, PRETRAIN, *words, "--save", name, folder=tmp_path)
        assert finished.exit_code == 0, finished.output
    resolved, _ = preflight([*argv, *switches], clean_environment())
    expected = _first_loss(resolved.run)
    assert losses(tmp_path / "documents")[0] == (1, "train", pytest.approx(expected, rel=1e-5))
    assert losses(tmp_path / "plain")[0][2] != pytest.approx(expected, rel=1e-3)
