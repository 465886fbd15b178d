from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from megatron_ds.data.hugging_face import DatasetChoice, read_dataset
from megatron_ds.errors import ConfigError, DataError
from tests.data.test_inputs import KEPT, TEXTS, texts_of
from tests.data.test_preprocess import run, write_lines

HF = ("--input-format", "hf")


def dataset_of(texts: list[str]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"n": range(len(texts)), "text": texts})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Splits train and test, saved by save_to_disk; train in three files."""
    splits = datasets.DatasetDict(train=dataset_of(TEXTS), test=dataset_of(["of the test split"]))
    splits.save_to_disk(tmp_path / "saved", num_shards={"train": 3, "test": 1})
    return tmp_path / "saved"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data files of two splits, and a configuration that reads another file."""
    (tmp_path / "folder" / "more").mkdir(parents=True)
    dataset_of(TEXTS).to_parquet(tmp_path / "folder" / "train.parquet")
    dataset_of(["of the test split"]).to_parquet(tmp_path / "folder" / "test.parquet")
    dataset_of(["of the other configuration"]).to_parquet(tmp_path / "folder" / "more" / "other.parquet")
    (tmp_path / "folder" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.parquet\n"
        "  - split: test\n    path: test.parquet\n  default: true\n"
        "- config_name: other\n  data_files: more/*.parquet\n---\n"
    )
    return tmp_path / "folder"


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", ["saved", "folder"])
def test_dataset_texts_survive_in_order(
    tmp_path: Path, kind: str, workers: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(kind)
    assert texts_of(source, tmp_path, *HF, "--workers", workers) == KEPT
    assert texts_of(source, tmp_path, *HF, "--dataset-split", "test", "--workers", workers) == ["of the test split"]
    assert texts_of([source, source], tmp_path, *HF, "--workers", workers) == KEPT * 2


def test_dataset_configuration_is_read(tmp_path: Path, folder: Path) -> None:
    assert texts_of(folder, tmp_path, *HF, "--dataset-config", "other") == ["of the other configuration"]


def test_dataset_saved_without_splits_is_read_whole(tmp_path: Path) -> None:
    dataset_of(TEXTS).save_to_disk(tmp_path / "saved")
    assert texts_of(tmp_path / "saved", tmp_path, *HF) == KEPT
    with pytest.raises(DataError, match=r"was saved without splits\n.*leave --dataset-split out"):
        run(tmp_path / "saved", tmp_path / "out", *HF, "--dataset-split", "train")


def test_dataset_folder_of_json_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    write_lines(tmp_path / "lines" / "train.jsonl", TEXTS)
    assert texts_of(tmp_path / "lines", tmp_path, *HF) == KEPT


def test_dataset_missing_split_names_those_there_are(tmp_path: Path, saved: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=rf"{saved} has no split 'dev'; it has 'train', 'test'"):
        run(saved, tmp_path / "out" / "x", *HF, "--dataset-split", "dev")
    with pytest.raises(DataError, match=rf"{folder} can't be opened: .*dev.*'train', 'test'"):
        run(folder, tmp_path / "out" / "x", *HF, "--dataset-split", "dev")
    assert list((tmp_path / "out").iterdir()) == []


def test_dataset_missing_configuration_names_those_there_are(tmp_path: Path, saved: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=rf"{folder} can't be opened: .*'nope' not found.*'default', 'other'"):
        run(folder, tmp_path / "out", *HF, "--dataset-config", "nope")
    with pytest.raises(DataError, match=rf"{saved} was saved by save_to_disk and has no configurations"):
        run(saved, tmp_path / "out", *HF, "--dataset-config", "nope")


@pytest.mark.parametrize("kind", ["saved", "folder"])
def test_dataset_missing_column_names_those_there_are(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(kind)
    with pytest.raises(DataError, match=rf"{source} has no column 'body'; it has 'n', 'text'\n.*--json-keys"):
        run(source, tmp_path / "out", *HF, "--json-keys", "body")


def test_dataset_bad_rows_are_named_or_skipped(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a", None, "b"], "n": [1, 2, 3]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=rf"{tmp_path / 'saved'}: row 2 has null under 'text'"):
        run(tmp_path / "saved", tmp_path / "out", *HF)
    assert texts_of(tmp_path / "saved", tmp_path, *HF, "--skip-bad-lines") == ["a", "b"]
    with pytest.raises(DataError, match="row 1 has a value of type int under 'n'"):
        run(tmp_path / "saved", tmp_path / "out", *HF, "--json-keys", "n")


def test_dataset_damaged_files_are_named(tmp_path: Path, saved: Path) -> None:
    shard = next((saved / "train").glob("data-00001-*.arrow"))
    shard.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=rf"dataset {saved} can't be read"):
        run(saved, tmp_path / "out", *HF)
    shard.unlink()
    with pytest.raises(DataError, match=rf"{saved / 'train'} lacks {shard.name}"):
        run(saved, tmp_path / "out", *HF)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("num_bytes", [0, 3, 100, -40])
def test_dataset_saved_file_that_is_cut_is_one_error(tmp_path: Path, saved: Path, number: int, num_bytes: int) -> None:
    shard = next((saved / "train").glob(f"data-0000{number}-*.arrow"))
    shard.write_bytes(shard.read_bytes()[:num_bytes])
    with pytest.raises(DataError, match=r"dataset .* can't be (opened|read): .*\n.*nothing was written"):
        run(saved, tmp_path / "out" / "x", *HF)


@pytest.mark.parametrize("content", ["[]", "{}", '{"_data_files": null}', '{"_data_files": [1]}', "{"])
def test_dataset_saved_with_a_damaged_state_is_one_error(tmp_path: Path, saved: Path, content: str) -> None:
    (saved / "train" / "state.json").write_text(content)
    with pytest.raises(DataError, match=rf"{saved / 'train' / 'state.json'} "):
        run(saved, tmp_path / "out", *HF)
    (saved / "dataset_dict.json").write_text(content)
    with pytest.raises(DataError, match=rf"{saved / 'dataset_dict.json'} "):
        run(saved, tmp_path / "out", *HF)


def test_dataset_wrong_names_are_told_before_anything_is_read(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(ConfigError) as error:
        run([tmp_path / "missing", file], tmp_path / "out", *HF)
    assert [problem.message for problem in error.value.problems] == [
        f"dataset folder not found: {tmp_path / 'missing'}",
        f"--input {file} is a file, not a dataset",
    ]
    with pytest.raises(ConfigError, match="--dataset-split is given without --input-format hf"):
        run(file, tmp_path / "out", "--dataset-split", "train")


def test_dataset_unknown_on_the_hub_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="no-such-dataset is no folder here, and the hub gives no dataset of this name"):
        list(read_dataset("no-such-dataset", DatasetChoice(), ["text"], 1000))


def test_dataset_batches_are_bounded(tmp_path: Path) -> None:
    texts = [f"{number:04d}" * 10 for number in range(1000)]
    dataset_of(texts).save_to_disk(tmp_path / "saved")
    batches = list(read_dataset(str(tmp_path / "saved"), DatasetChoice(), ["text"], 2000))
    documents = [batch.document(index) for batch in batches for index in range(len(batch))]
    assert documents == [{"text": text} for text in texts]
    assert max(batch.num_bytes for batch in batches) < 2100


def test_dataset_reading_does_not_import_torch(tmp_path: Path, saved: Path) -> None:
    code = "import sys; from megatron_ds.cli.preprocess import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = ["--input", str(saved), "--output-prefix", str(tmp_path / "out"), "--tokenizer-type", "ByteTokenizer"]
    command += [*HF, "--workers", "2"]
    result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
