"""A Hugging Face model cut for any layout comes back as it was, and gives the same logits (field report C9)."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.cli.checkpoint_tools import main
from tests.checkpoint.huggingface.families import FAMILIES, VOCAB_SIZE, save

ONE_OF_EACH = {
    family.name: name
    for name, family in reversed(FAMILIES.items())
    if family.name in ("GPT2LMHead", "BloomFor", "GPTNeoXFor", "OPTFor", "LlamaFor", "Qwen3For", "BertFor")
}


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_model_cut_for_each_layout_is_the_model(name: str, tmp_path: Path) -> None:
    theirs = save(FAMILIES[name], tmp_path / "theirs")
    main(["import", "--from", "hf", "--input", str(tmp_path / "theirs"), "--output", str(tmp_path / "ours")])
    for tp, pp in product((1, 2, 4), (1, 2)):
        cut, back = tmp_path / f"tp{tp}pp{pp}", tmp_path / f"back{tp}{pp}"
        layout = ["--target-tp", str(tp), "--target-pp", str(pp)]
        main(["reshard", "--input", str(tmp_path / "ours"), "--output", str(cut), *layout])
        saved = open_checkpoint(cut).manifest.layout
        assert (saved.tp_size, saved.pp_size) == (tp, pp)
        main(["export", "--format", "hf", "--input", str(cut), "--output", str(back)])
        before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "theirs", back))
        assert before.keys() == after.keys()
        for key, tensor in before.items():
            # Nothing reads the first two of OPT's positions, and a reshard leaves them behind.
            first = 2 if key.endswith("embed_positions.weight") else 0
            assert torch.equal(tensor[first:], after[key][first:]), key
    tokens = torch.randint(VOCAB_SIZE, (2, 16), generator=torch.Generator().manual_seed(3))
    again = type(theirs).from_pretrained(back, attn_implementation="eager").eval()
    with torch.no_grad():
        # The first of the outputs is the scores of the tokens.
        assert (again(tokens)[0] - theirs(tokens)[0]).abs().max() <= 1e-4
