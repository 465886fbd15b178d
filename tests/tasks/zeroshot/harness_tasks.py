"""Tasks of lm-evaluation-harness as local files, a tiny tokenizer, and a checkpoint of a model with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from megatron_ds.config.blocks import ModelConfig
from tests.generation.checkpoints import random_checkpoint
from tests.generation.models import SIZES

POSITIONS = 32
SENTENCES = (
    "the cat sat on the mat and looked at the hat",
    "a dog ran to the cat",
    "the hat sat on a dog and the dog ran and ran and ran to the mat where the cat looked at the dog again",
    "who ran to the mat",
)
# The context of the second is empty, and that of the third longer than the window.
QUESTIONS = (
    {"question": SENTENCES[1], "choices": ["home", "away from the cat", "on"], "answer": 1},
    {"question": "", "choices": ["the cat sat", "a dog", "who"], "answer": 0},
    {"question": SENTENCES[2] * 2, "choices": ["mat", "hat and the mat"], "answer": 1},
    {"question": "who ran ", "choices": ["<|endoftext|>", "the dog"], "answer": 1},
)
_COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
"""
_TASKS = {
    "tiny_choice": """
task: tiny_choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: answer
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "tiny_rolling": """
task: tiny_rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
""",
    "tiny_text": """
task: tiny_text
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["e", "."], max_gen_toks: 9, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def write_tasks(folder: Path) -> Path:
    """Writes the tasks and their data; returns the folder for ``--include-path``."""
    questions, texts = folder / "questions.jsonl", folder / "texts.jsonl"
    questions.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    tasks = folder / "tasks"
    tasks.mkdir()
    for name, text in _TASKS.items():
        file = questions if name == "tiny_choice" else texts
        (tasks / f"{name}.yaml").write_text(text + _COMMON.format(file=file))
    return tasks


def write_tokenizer(folder: Path) -> dict[str, str]:
    """A byte-level BPE with an end of text; returns the options that name it."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(SENTENCES, vocab_size=300, min_frequency=2, special_tokens=["<|endoftext|>"])
    folder.mkdir()
    tokenizer.save_model(str(folder))
    return {
        "tokenizer_type": "GPT2BPETokenizer",
        "vocab_file": str(folder / "vocab.json"),
        "merge_file": str(folder / "merges.txt"),
    }


def write_checkpoint(folder: Path) -> Path:
    """The checkpoint of a GPT-2 for the tokenizer; returns the run's folder."""
    data = write_tokenizer(folder / "tokenizer")
    vocab_size = len(json.loads(Path(data["vocab_file"]).read_text()))
    sizes = SIZES | {"vocab_size": vocab_size, "seq_length": POSITIONS}
    return random_checkpoint(folder / "run", ModelConfig(**sizes), data)
