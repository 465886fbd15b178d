"""BERT's WordPiece as the files of transformers' `BertTokenizer`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from megatron_ds.tokenizers.bert_wordpiece import BertWordPieceTokenizer


def write_bert_wordpiece(vocab_file: Path, output: Path, *, lower_case: bool) -> dict[str, int]:
    """Writes ``vocab.txt``, ``tokenizer.json`` and ``tokenizer_config.json``.

    The second has our ``[BOS]`` and ``[EOS]`` too, which other programs' vocab.txt lacks: all ids are the same.

    Args:
        vocab_file: the vocab.txt.
        output: an existing folder.
        lower_case: whether letters become small and lose their accents.

    Returns:
        The ids for config.json.

    Raises:
        ConfigError: the file is not BERT's vocabulary.
        OSError: it can't be read.
    """
    import tokenizers

    tokenizer = BertWordPieceTokenizer(vocab_file, lower_case=lower_case)
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    # What stands around one text and around two. Ours are put together from sentences and need no such rule.
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    shutil.copyfile(vocab_file, output / "vocab.txt")
    backend.save(str(output / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        **special,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return {"pad_token_id": tokenizer.pad_id}
