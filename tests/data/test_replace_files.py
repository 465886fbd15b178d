"""What is there when replacing files stops halfway."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from megatron_ds.cli import merge_data
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.replace_files import NewFile, leftovers, put_in_place, temporary_suffix
from megatron_ds.data.token_info import read_token_info
from megatron_ds.errors import ConfigError, DataError
from tests.data.conftest import write_documents
from tests.data.test_preprocess import preprocess_files, run, write_lines

KEYS = ("text", "title")
SUFFIXES = (".bin", ".json", ".idx")


def stop_at(number: int, stop: Callable[[], NoReturn], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls `stop` instead of one rename, counted from 0; the list gets what was renamed."""
    renamed: list[str] = []
    rename = Path.rename

    def counted(path: Path, target: Path) -> Path:
        renamed.append(path.name)
        if len(renamed) == number + 1:
            stop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", counted)
    return renamed


def fail() -> NoReturn:
    raise PermissionError(1, "Operation not permitted")


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def die() -> NoReturn:
    os._exit(9)


def die_at(number: int, action: Callable[[], object]) -> int:
    """Runs something in another process, which dies instead of one rename; returns its exit code."""

    def child() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            stop_at(number, die, monkeypatch)
            action()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_input(path: Path, text: str) -> Path:
    path.write_text("".join(json.dumps(dict.fromkeys(KEYS, f"{text} {number}")) + "\n" for number in range(5)))
    return path


def preprocess_both(folder: Path, text: str) -> dict[str, bytes]:
    """Preprocesses two keys; returns the files."""
    source = write_input(folder.parent / "in.jsonl", text)
    preprocess_files(source, folder / "x", "--json-keys", *KEYS)
    return contents(folder)


@pytest.mark.parametrize("stop", [fail, interrupt])
@pytest.mark.parametrize("number", range(12))
def test_preprocess_that_fails_at_any_rename_changes_nothing(
    tmp_path: Path, number: int, stop: Callable[[], NoReturn], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = preprocess_both(tmp_path / "out", "old")
    assert len(before) == 6
    renamed = stop_at(number, stop, monkeypatch)
    with pytest.raises((DataError, KeyboardInterrupt)):
        preprocess_both(tmp_path / "out", "a newer text")
    assert len(renamed) > number
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("number", range(6))
def test_merge_that_fails_at_any_rename_changes_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "out"):
        run(write_lines(tmp_path / "in.jsonl", [name]), tmp_path / name)
    before = contents(tmp_path)
    renamed = stop_at(number, fail, monkeypatch)
    a, out = (f"{tmp_path / name}_text_document" for name in ("a", "out"))
    with pytest.raises(DataError, match=r"can't be written: .*Operation not permitted"):
        merge_data.main(["--input", a, a, "--output-prefix", out])
    assert len(renamed) > number
    assert contents(tmp_path) == before


def test_merge_without_a_description_takes_the_earlier_one_away(tmp_path: Path) -> None:
    write_documents(tmp_path / "a", [[1]])
    run(write_lines(tmp_path / "in.jsonl", ["b"]), tmp_path / "out")
    out = f"{tmp_path / 'out'}_text_document"
    merge_data.main(["--input", str(tmp_path / "a"), "--output-prefix", out])
    assert read_token_info(out) is None
    assert IndexedDataset(out).num_documents == 1
    assert sorted(contents(tmp_path)) == [
        "a.bin",
        "a.idx",
        "in.jsonl",
        f"{Path(out).name}.bin",
        f"{Path(out).name}.idx",
    ]


@pytest.mark.parametrize("name", ["x_text_document.json", "x_title_document.idx", "x_title_document.bin"])
def test_preprocess_folder_in_the_way_is_told_before_anything_is_read(tmp_path: Path, name: str) -> None:
    before = preprocess_both(tmp_path / "out", "old")
    (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / name).mkdir()
    with pytest.raises(ConfigError, match=f"{name} is a folder, where a file is to be written"):
        preprocess_both(tmp_path / "out", "new")
    assert contents(tmp_path / "out") == {key: value for key, value in before.items() if key != name}


@pytest.mark.parametrize("number", range(12))
def test_preprocess_killed_at_any_rename_loses_no_earlier_pair_and_the_next_run_names_it(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    new = preprocess_both(out, "a newer text")
    old = preprocess_both(out, "old")
    assert die_at(number, lambda: preprocess_both(out, "a newer text")) == 9
    left = contents(out)
    aside = {name.partition(".old-")[0]: content for name, content in left.items() if ".old-" in name}
    for key in KEYS:
        names = [f"x_{key}_document{suffix}" for suffix in SUFFIXES]
        if names[-1] in left:
            assert {name: left[name] for name in names} in [{name: each[name] for name in names} for each in (old, new)]
        # Each earlier file is in its place, or aside, until all of the new ones are in theirs.
        assert all(old[name] in (left.get(name), aside.get(name)) for name in names)
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        assert preprocess_both(out, "a newer text").items() >= new.items()
    for kind, words in (
        ("old", "the earlier files that a run was replacing"),
        ("part", "left by a run that was killed"),
    ):
        names = ", ".join(sorted(name for name in left if f".{kind}-" in name))
        assert (f"{names} in {out}: {words}" in caplog.text) == bool(names)


def test_put_in_place_killed_after_the_last_rename_leaves_all_new_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "new").write_text("new")
    code = die_at(2, lambda: put_in_place([[NewFile(tmp_path / "a", tmp_path / "new")]]))
    assert (code, sorted(contents(tmp_path).values())) == (0, [b"new"])


def put_slowly(folder: Path, name: str, times: int) -> None:
    """Puts pairs in place whose two files have the same content."""
    rename = Path.rename

    def slow(path: Path, target: Path) -> Path:
        time.sleep(0.002)
        return rename(path, target)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Path, "rename", slow)
        for number in range(times):
            files = [NewFile(folder / each, folder / f"{each}.{name}") for each in ("bin", "idx")]
            for file in files:
                assert file.temporary is not None
                file.temporary.write_text(f"{name} {number}")
            put_in_place([files])


def test_put_in_place_by_two_processes_at_once_leaves_the_files_of_one(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for _ in range(10):
        processes = [fork.Process(target=put_slowly, args=(tmp_path, name, 3)) for name in "ab"]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        left = contents(tmp_path)
        assert sorted(left) == ["bin", "idx"]
        assert left["bin"] == left["idx"]


def test_put_in_place_replaces_a_link_not_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "a").symlink_to("elsewhere")
    (tmp_path / "b").symlink_to("nowhere")
    for name in ("a", "b"):
        (tmp_path / "new").write_text("new")
        put_in_place([[NewFile(tmp_path / name, tmp_path / "new")]])
        assert not (tmp_path / name).is_symlink()
    assert contents(tmp_path) == {"a": b"new", "b": b"new", "elsewhere": b"old"}


def test_temporary_suffix_is_another_each_time_and_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a/näme-7." + "x" * 300)
    names = sorted(f"c{temporary_suffix('part')}" for _ in range(2))
    assert names[0] != names[1]
    for name in (*names, f"c{temporary_suffix('old')}", "c.part", "d.part-a-1-00000000"):
        (tmp_path / name).touch()
    assert leftovers(tmp_path, "c", "part") == names
    assert len(leftovers(tmp_path, "c|d", "part")) == 3
    assert leftovers(tmp_path / "missing", "c", "part") == []


def test_builders_with_one_process_id_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers that share a folder, and have the same host name and process id."""
    new = preprocess_both(tmp_path / "out", "new")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    names = {f"{name}{temporary_suffix('part')}" for name in new for _ in range(3)}
    assert len(names) == 3 * len(new)
    assert preprocess_both(tmp_path / "out", "new") == new
