from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_ds.tokenizers.hugging_face import load_hugging_face_tokenizer
from scripts import quickstart_data
from scripts.quickstart_data import python_sources, read_json_lines, read_source, train_tokenizer, write_json_lines


@pytest.fixture
def library(tmp_path: Path) -> Path:
    files = {
        "a.py": b"a = 1\n",
        "package/b.py": "b = 'é'\n".encode(),
        "latin.py": b"# -*- coding: latin-1 -*-\nc = '\xe9'\n",
        "broken.py": b"d = '\xff'\n",
        "unknown_encoding.py": b"# coding: no-such-thing\n",
        "empty.py": b" \n",
        "notes.txt": b"not Python\n",
        "site-packages/other.py": b"other = 1\n",
        "package/dist-packages/deep/other.py": b"other = 2\n",
    }
    for name, content in files.items():
        path = tmp_path / "library" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "library"


def test_python_sources_gives_readable_files_of_the_library_alone(library):
    assert sorted(python_sources(library)) == ["# -*- coding: latin-1 -*-\nc = 'é'\n", "a = 1\n", "b = 'é'\n"]


def test_python_sources_below_a_folder_named_site_packages_are_found(library, tmp_path):
    moved = library.rename(tmp_path / "site-packages")
    assert len(list(python_sources(moved))) == 3


def test_python_sources_come_in_the_same_shuffled_order_each_time(tmp_path):
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_text(f"{number}")
    first = list(python_sources(tmp_path))
    assert first == list(python_sources(tmp_path))
    assert first != sorted(first, key=int)


def test_read_source_of_a_missing_file_is_empty(tmp_path):
    assert read_source(tmp_path / "nothing.py") == ""


def test_write_json_lines_is_read_back_and_leaves_no_other_file(tmp_path):
    texts = ["one\ntwo", "é\u2028"]
    assert write_json_lines(iter(texts), tmp_path / "text.jsonl") == (2, 9)
    assert list(read_json_lines(tmp_path / "text.jsonl")) == texts
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]


def test_train_tokenizer_has_the_size_and_gives_any_text_back(tmp_path):
    text = "def add(left, right):\n    return left + right\n" * 20
    train_tokenizer(iter([text]), vocab_size=270).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_hugging_face_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.vocab_size == 270
    assert tokenizer.eod_id == 0
    for sample in (text, "    unseen: ß 語\n"):
        assert tokenizer.decode(tokenizer.encode(sample)) == sample
    assert len(tokenizer.encode(text)) < len(text)


def test_main_uses_what_an_earlier_start_made(library, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quickstart_data.sysconfig, "get_path", lambda name: {"stdlib": str(library)}[name])
    quickstart_data.main(tmp_path / "data")
    assert len((tmp_path / "data/text.jsonl").read_text().splitlines()) == 3
    tokenizer = (tmp_path / "data/tokenizer.json").read_text()
    (tmp_path / "data/text.jsonl").write_text(json.dumps({"text": "mine"}) + "\n")
    capsys.readouterr()
    quickstart_data.main(tmp_path / "data")
    assert capsys.readouterr().out.count("from an earlier start") == 2
    assert list(read_json_lines(tmp_path / "data/text.jsonl")) == ["mine"]
    assert (tmp_path / "data/tokenizer.json").read_text() == tokenizer


def test_main_without_sources_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart_data.sysconfig, "get_path", lambda _: str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match="holds no Python sources"):
        quickstart_data.main(tmp_path / "data")
    assert not (tmp_path / "data/text.jsonl").exists()
