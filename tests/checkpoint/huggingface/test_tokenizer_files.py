"""The tokenizer comes along with the weights, or it is said why it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from megatron_ds.checkpoint.huggingface import ARCHITECTURES, check_ids
from megatron_ds.checkpoint.huggingface.tokenizer_files import write_tokenizer
from megatron_ds.config.blocks import DataConfig
from megatron_ds.errors import CheckpointError
from megatron_ds.tokenizers.build import build_tokenizer

TEXT = "the cat<|endoftext|> sat on the hat"


@pytest.fixture
def bpe(tmp_path: Path) -> tuple[Path, Path]:
    """vocab.json and merges.txt of a byte-level BPE with an end of text."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT] * 5, vocab_size=270, min_frequency=1, special_tokens=["<|endoftext|>"])
    folder = tmp_path / "bpe"
    folder.mkdir()
    tokenizer.save_model(str(folder))
    return folder / "vocab.json", folder / "merges.txt"


def _loaded(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _written(data: dict[str, Any], tmp_path: Path, fallback: str = "nothing", model_type: str = "gpt2") -> Any:
    output = tmp_path / "out"
    output.mkdir()
    # As in an export: the class of the model decides nothing.
    (output / "config.json").write_text(json.dumps({"model_type": model_type}))
    return write_tokenizer(data, output, tmp_path / fallback, model_type)


def test_gpt2_bpe_is_written_with_its_ids(bpe: tuple[Path, Path], tmp_path: Path) -> None:
    data = {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": str(bpe[0]), "merge_file": str(bpe[1])}
    written = _written(data, tmp_path)
    assert written.why_none is None
    assert written.token_ids == {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    theirs, ours = _loaded(tmp_path / "out"), build_tokenizer(DataConfig(**data))
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT, allow_special=True)
    assert theirs.eos_token_id == ours.eod_id == 0
    assert len(theirs) == ours.vocab_size
    assert (tmp_path / "out" / "merges.txt").read_text() == bpe[1].read_text()


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_bert_wordpiece_is_written_with_its_ids(kind: str, tmp_path: Path) -> None:
    vocab = tmp_path / "words.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncat\n##s\n,\nd\n##é\n##e\n")
    data = {"tokenizer_type": kind, "vocab_file": str(vocab)}
    written = _written(data, tmp_path, model_type="bert")
    assert written.why_none is None
    assert written.token_ids == {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    theirs, ours = _loaded(tmp_path / "out"), build_tokenizer(DataConfig(**data))
    assert type(theirs).__name__ == "BertTokenizer"
    assert check_ids(ours, tmp_path / "out") > 0
    small = kind == "BertWordPieceLowerCase"
    assert ours.encode("The cats, dé") == [5 if small else 6, 7, 8, 9, 10, 12 if small else 11]
    assert theirs("the", "cats") == {
        "input_ids": [2, 5, 3, 7, 8, 3],
        "token_type_ids": [0, 0, 0, 1, 1, 1],
        "attention_mask": [1] * 6,
    }
    # Ids of the end of a text are ours alone, and have a row in the model.
    assert len(theirs) == ours.vocab_size == 15
    # And by vocab.txt alone, as older models have it.
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert _loaded(tmp_path / "out").mask_token_id == 4
    assert check_ids(ours, tmp_path / "out") > 0


def test_tokenizer_json_is_written_with_its_special_tokens(bpe: tuple[Path, Path], tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*map(str, bpe)))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|endoftext|>", "<pad>"])
    source = tmp_path / "mine"
    source.mkdir()
    backend.save(str(source / "my_tokenizer.json"))
    config = {
        "eos_token": "<|endoftext|>",
        "pad_token": {"__type": "AddedToken", "content": "<pad>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    data = {"tokenizer_type": "HFTokenizer", "tokenizer_name_or_path": str(source / "my_tokenizer.json")}
    written = _written(data, tmp_path)
    assert written.token_ids == {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": backend.token_to_id("<pad>")}
    theirs = _loaded(tmp_path / "out")
    assert theirs(TEXT)["input_ids"] == backend.encode(TEXT).ids
    assert theirs.eos_token == "<|endoftext|>"


def test_folder_that_is_gone_is_replaced_by_what_the_import_left(bpe: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*map(str, bpe))).save(str(kept / "tokenizer.json"))
    (kept / "generation_config.json").write_text('{"eos_token_id": [5, 6], "temperature": 0.7}')
    data = {"tokenizer_type": "HFTokenizer", "tokenizer_name_or_path": str(tmp_path / "gone")}
    written = _written(data, tmp_path, "kept")
    assert written.why_none is None
    assert written.token_ids["eos_token_id"] == [5, 6]
    assert written.generation == {"eos_token_id": [5, 6], "temperature": 0.7}
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (kept / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"tokenizer_type": "NullTokenizer", "eod_id": 7}, "NullTokenizer has no counterpart"),
        ({"eod_id": 7}, "the checkpoint names no tokenizer"),
        (
            {"tokenizer_type": "HFTokenizer", "tokenizer_name_or_path": "nobody/nothing", "eod_id": 7},
            "nobody/nothing is neither a file or folder here nor kept from the hub",
        ),
        ({"tokenizer_type": "BertWordPieceCase", "vocab_file": "no.txt", "eod_id": 7}, "no.txt can't be read: No such"),
        (
            {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "no.json", "merge_file": "no.txt", "eod_id": 7},
            "are not the two files of a byte-level BPE",
        ),
    ],
)
def test_tokenizer_that_can_not_be_written_is_said_with_the_reason(
    data: dict[str, Any], why: str, tmp_path: Path
) -> None:
    written = _written(data, tmp_path)
    assert why in str(written.why_none)
    assert written.token_ids == {"bos_token_id": None, "eos_token_id": 7, "pad_token_id": None}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]


def _own_rules(folder: Path) -> dict[str, Any]:
    """Options of a tokenizer.json whose words no class of transformers has, alone in a folder."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    split, to_bytes = tokenizers.pre_tokenizers.Whitespace(), tokenizers.pre_tokenizers.ByteLevel
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [split, to_bytes(add_prefix_space=False, use_regex=False)]
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the cat sat 12345 times"] * 5, trainer)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return {"tokenizer_type": "HFTokenizer", "tokenizer_name_or_path": str(folder / "tokenizer.json")}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("beside", [None, {"model_max_length": 16}, {"tokenizer_class": "TokenizersBackend"}])
def test_auto_tokenizer_gives_our_ids_beside_every_architecture(
    model_type: str, beside: dict[str, Any] | None, tmp_path: Path
) -> None:
    data = _own_rules(tmp_path / "own")
    if beside is not None:
        (tmp_path / "own" / "tokenizer_config.json").write_text(json.dumps(beside))
    _written(data, tmp_path, model_type=model_type)
    assert check_ids(build_tokenizer(DataConfig(**data)), tmp_path / "out") > 0


def test_tokenizer_as_it_is_loads_with_trusted_code_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    data = _own_rules(tmp_path / "own")
    _written(data, tmp_path, model_type="qwen2")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert type(theirs).__name__ == "TokenizerAsItIs"
    text = "the cat's 12345"
    assert theirs(text)["input_ids"] == build_tokenizer(DataConfig(**data)).encode(text)


def test_other_ids_are_refused(tmp_path: Path) -> None:
    data = _own_rules(tmp_path / "own")
    (tmp_path / "own" / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(CheckpointError, match=r"texts other ids than our tokenizer.*Qwen2Tokenizer"):
        check_ids(build_tokenizer(DataConfig(**data)), tmp_path / "own")


def test_bare_tokenizer_json_has_its_end_of_text_written(tmp_path: Path) -> None:
    data = _own_rules(tmp_path / "own")
    assert _written(data, tmp_path).token_ids["eos_token_id"] == build_tokenizer(DataConfig(**data)).eod_id == 0
    assert _loaded(tmp_path / "out").eos_token_id == 0


def test_byte_tokenizer_has_its_end_of_text_written(tmp_path: Path) -> None:
    assert _written({"tokenizer_type": "ByteTokenizer"}, tmp_path).token_ids["eos_token_id"] == 256
