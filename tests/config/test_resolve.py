from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_ds.config import RunConfig, collect, describe, describe_draft, draft, resolve, write_resolved
from megatron_ds.config.catalog import all_options
from megatron_ds.errors import ConfigError, Source
from tests.config.helpers import environ, only_problem, problems, resolved, words, write_json


def block(**blocks):
    return {"megatron_ds": blocks}


def test_precedence_later_source_wins_and_origin_says_which(tmp_path):
    file = write_json(
        tmp_path / "run.json",
        block(
            model={"preset": "gpt2_125m", "num_layers": 3}, optimizer={"lr": 1e-4, "weight_decay": 0.2, "min_lr": 1e-6}
        ),
    )
    config = write_json(tmp_path / "more.json", {"optimizer": {"weight_decay": 0.3, "min_lr": 1e-5}})
    argv = ["--deepspeed_config", file, "--config", config, "--min-lr", "2e-5", "--micro-batch-size", "1"]
    result = resolved([*argv, "--train-iters", "6"])
    run, origins = result.run, result.origins
    assert (run.optimizer.adam_eps, origins["optimizer.adam_eps"]) == (1e-8, "default")
    assert (run.model.hidden_size, origins["model.hidden_size"]) == (768, "preset gpt2_125m")
    assert (run.model.num_layers, origins["model.num_layers"]) == (3, f"{file}: megatron_ds.model.num_layers")
    assert (run.optimizer.lr, origins["optimizer.lr"]) == (1e-4, f"{file}: megatron_ds.optimizer.lr")
    assert (run.optimizer.weight_decay, origins["optimizer.weight_decay"]) == (0.3, f"{config}: optimizer.weight_decay")
    assert (run.optimizer.min_lr, origins["optimizer.min_lr"]) == (2e-5, "--min-lr")
    assert origins["training.global_batch_size"].startswith("derived: ")


def test_model_preset_flag_replaces_the_blocks_preset(tmp_path):
    file = write_json(tmp_path / "run.json", block(model="gpt2_125m"))
    argv = ["--deepspeed_config", file, "--micro-batch-size", "1", "--train-iters", "6", "--lr", "1"]
    assert resolved(argv).run.model.hidden_size == 768
    result = resolved([*argv, "--model-preset", "gpt2_350m"])
    assert (result.run.model.hidden_size, result.origins["model.hidden_size"]) == (1024, "preset gpt2_350m")


def test_model_preset_flag_beside_keys_of_the_block_says_which_stand_over_it(tmp_path):
    model = {"preset": "gpt2_125m", "num_layers": 3, "hidden_size": 1024, "seq_length": 64, "qk_layernorm": True}
    file = write_json(tmp_path / "run.json", block(model=model))
    argv = ["--deepspeed_config", file, "--micro-batch-size", "1", "--train-iters", "6", "--lr", "1"]
    result = resolved([*argv, "--model-preset", "gpt2_350m", "--seq-length", "32"])
    assert (result.run.model.num_layers, result.run.model.num_attention_heads) == (3, 16)
    place = f"{file}: megatron_ds.model."
    # Not hidden_size, which is the preset's, and not seq_length, which a flag gives.
    assert [note for note in result.notes if "stand over" in note] == [
        "--model-preset gpt2_350m: these keys stand over the preset: "
        f"num_layers 3, not 24 ({place}num_layers); qk_layernorm true, not false ({place}qk_layernorm)"
    ]
    assert not [note for note in resolved([*argv, "--hidden-size", "768"]).notes if "stand over" in note]


def test_model_preset_misspelt_names_the_nearest():
    argv = ["--model-preset", "gpt2_125mm", "--micro-batch-size", "1", "--train-iters", "6", "--lr", "1"]
    assert "did you mean gpt2_125m?" in str(problems(argv)[0])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (block(modle={}), ["unknown block", "megatron_ds.modle", "did you mean model?"]),
        (block(lr=1), ["megatron_ds.lr", "megatron_ds.optimizer.lr"]),
        (block(training={"lr": 1}), ["megatron_ds.training.lr", "its place is megatron_ds.optimizer.lr"]),
        (block(training={"trian_iters": 1}), ["megatron_ds.training.trian_iters", "train_iters"]),
        (block(model={"rope_theta": 5000}), ["model.rope_theta", '"rotary_base", in megatron_ds.model']),
        (block(training={"rope_theta": 5000}), ["training.rope_theta", '"rotary_base", in megatron_ds.model']),
        (block(parallel={"tp": 2}), ["parallel.tp", '"tensor_model_parallel_size", in megatron_ds.parallel']),
        (block(tp=2), ["unknown block", '"tensor_model_parallel_size", in megatron_ds.parallel']),
        (block(model={"rope_scaling": {"factor": 8}}), ["model.rope_scaling", "use_rope_scaling is true for Llama 3"]),
        (block(model={"swiglu": True}), ["model.swiglu", '"activation": "swiglu"']),
        (block(training={"use_flash_attn": True}), ["use_flash_attn", "--attention-backend flash"]),
        (block(training={"bf16": "yes"}), ["bf16 is true or false, not 'yes'", "Trains in bfloat16"]),
        (block(training={"seed": "7"}), ["seed is a whole number, not '7'", "megatron_ds.training.seed"]),
        (block(training={"seed": True}), ["seed is a whole number, not true"]),
        (block(training={"bf16": 1}), ["bf16 is true or false, not 1"]),
        (block(parallel={"zero_stage": True}), ["one of 0, 1, 2, 3, not true"]),
        (block(checkpoint={"save": ""}), ["save is text that isn't empty", "megatron_ds.checkpoint.save"]),
        (block(data={"data_path": ["a", ""]}), ["data_path is text that isn't empty"]),
        (block(model=""), ["preset is text that isn't empty"]),
        (block(model={"preset": ""}), ["preset is text that isn't empty"]),
        (block(optimizer={"clip_grad": 10**400}), ["clip_grad is a number"]),
        (block(training=[1]), ["megatron_ds.training is an object"]),
        ({"megatron_ds": 3}, ["megatron_ds is an object"]),
    ],
)
def test_block_with_a_mistake_gives_one_problem(tmp_path, content, parts):
    text = only_problem(words("--deepspeed_config", write_json(tmp_path / "run.json", content)))
    for part in parts:
        assert part in text


def test_block_null_means_not_given(tmp_path):
    file = write_json(tmp_path / "run.json", block(training={"seed": None}))
    assert resolved(words("--deepspeed_config", file)).origins["training.seed"] == "default"


def test_block_with_one_data_path_takes_text(tmp_path):
    file = write_json(tmp_path / "run.json", block(data={"data_path": "my corpus"}))
    assert resolved(words("--deepspeed_config", file)).run.data.data_path == ["my corpus"]


def test_model_preset_with_a_mistake_says_what_to_do(tmp_path):
    file = write_json(tmp_path / "mine.json", {"n_layer": 2, "normalization": "layernrm"})
    first, second = problems(words("--model-preset", file))
    assert (first.message, first.advice) == (
        f"{file}: unknown key model.n_layer",
        'in a JSON it is "num_layers", in megatron_ds.model',
    )
    assert second.advice == "did you mean LayerNorm?"


def test_key_that_nothing_is_near_says_where_all_are(tmp_path):
    file = write_json(tmp_path / "run.json", {"xyzzy": 1, **block(model={"xyzzy": 1})})
    assert [problem.advice for problem in problems(words("--deepspeed_config", file))] == [
        "docs/config.md lists DeepSpeed's keys and our options",
        "docs/config.md lists all options",
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1,}', "is not valid JSON"),
        ('{"bf16": {"enabled": true}, "bf16": {}}', "a key is given twice: bf16"),
        ("[1]", "the outermost value is an object"),
        ('{"steps_per_print": ' + "1" * 5000 + "}", "a number with thousands of digits"),
        ('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "more than 16 deep"),
        ('{"x": ' + "[" * 17 + "]" * 17 + "}", "more than 16 deep"),
        ("\ufeff{}", "begins with a byte order mark"),
        ("", "is not valid JSON"),
        ('{"wandb": {"team": "\\ud83d"}}', "has half of a character"),
        ('{"\\ud83d": 1}', "has half of a character"),
    ],
    ids=["comma", "twice", "list", "digits", "deepest", "deep", "mark", "empty", "half_text", "half_key"],
)
def test_file_that_is_broken_gives_one_problem_with_its_name(tmp_path, text, part):
    file = tmp_path / "broken.json"
    file.write_text(text)
    message = only_problem(words("--deepspeed_config", str(file)))
    assert part in message and str(file) in message


def test_file_that_is_no_text_gives_one_problem(tmp_path):
    file = tmp_path / "utf16.json"
    file.write_bytes("{}".encode("utf-16"))
    assert "is not UTF-8 text" in only_problem(words("--config", str(file)))


@pytest.mark.parametrize("method", ["read_text", "stat"])
def test_file_that_the_system_refuses_gives_one_problem(tmp_path, monkeypatch, method):
    file = write_json(tmp_path / "secret.json", {})

    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)  # not by its mode: tests may run as root, who may read everything
    text = only_problem(words("--deepspeed_config", file))
    monkeypatch.undo()
    assert "secret.json can't be read: Permission denied" in text


@pytest.mark.parametrize("flag", ["--deepspeed_config", "--config", "--model-preset"])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        (os.devnull, "no regular file"),
        ("x" * 300, "between two slashes"),
        ("x/" * 3000, "at most 4095 bytes"),
        ("a\0b", "null characters"),
        (f"{__file__}/x.json", "there is no such file"),
    ],
    ids=["device", "long_name", "long_path", "null", "below_a_file"],
)
def test_file_name_that_no_file_can_have_gives_one_problem(flag, name, part):
    assert part in only_problem(words(flag, name))


def test_file_that_is_missing_or_a_folder_is_named(tmp_path):
    assert "there is no such file" in only_problem(words("--config", str(tmp_path / "none.json")))
    assert "did you mean zero1_bf16?" in only_problem(words("--deepspeed_config", "zero1_bf61"))
    assert "is a folder" in only_problem(words("--deepspeed_config", str(tmp_path)))


def test_deepspeed_config_by_bare_name_says_which_file_was_taken():
    result = resolved(words("--deepspeed_config", "zero1_bf16"))
    assert result.run.training.bf16
    assert result.origins["training.bf16"] == "zero1_bf16.json: bf16.enabled"
    assert any("taken from" in note and note.endswith("zero1_bf16.json") for note in result.notes)


def test_config_with_deepspeed_keys_is_refused(tmp_path):
    file = write_json(tmp_path / "c.json", {"megatron_ds": {}, "bf16": {}})
    assert "keys beside megatron_ds: bf16" in only_problem(words("--config", file))


def test_missing_options_are_all_listed_with_flag_and_key():
    result, found = collect([], environ())
    assert result is None
    (text,) = [str(problem) for problem in found]
    assert text.startswith("9 required options are missing: num_layers, hidden_size")
    assert "--lr, or megatron_ds.optimizer.lr in a JSON" in text
    assert "--data-path" in text


@pytest.mark.parametrize(
    "data", [["--train-data-path", "a"], ["--train-weighted-split-paths", "a: 1 0:1 b"], ["--task", "MNLI"]]
)
def test_missing_options_do_not_include_the_data_that_another_option_names(data):
    text = only_problem(words(*data, "--vocab-size", "9", lr=None))
    assert text.startswith("1 required option is missing: lr\n")


def test_missing_options_include_the_tokenizer_that_nothing_names():
    text = only_problem(words("--data-path", "a", "--vocab-file", "vocab.json", lr=None))
    assert text.startswith("2 required options are missing: lr, tokenizer_type\n")


def test_missing_option_with_a_wrong_value_is_reported_once():
    assert "lr is a number" in only_problem(words(lr="x"))


def test_problems_of_all_kinds_come_in_one_report(tmp_path):
    file = write_json(tmp_path / "run.json", {"bf61": {}, **block(training={"x": 1})})
    argv = words("--deepspeed_config", file, "--typo", num_attention_heads="5", micro_batch_size=None)
    text = str(ConfigError(problems(argv)))
    for part in ("5 problems", "--typo", "bf61", "training.x", "hidden_size 32", "micro_batch_size"):
        assert part in text


def test_collect_with_problems_still_gives_the_options():
    result, found = collect(words("--data-path", "corpus", num_attention_heads="5"), environ())
    assert found and result is not None
    assert result.run.data.data_path == ["corpus"]
    assert result.deepspeed == {}


def test_resolve_with_problems_raises_config_error_with_exit_code_2():
    with pytest.raises(ConfigError, match="num_attention_heads") as caught:
        resolve(words(num_attention_heads="5"), environ(), "x")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("size", ["0", "four", "-1", "1000001", "9" * 5000])
def test_world_size_that_is_no_number_is_reported(size):
    assert "the number of processes" in only_problem(words(), WORLD_SIZE=size)


def test_describe_shows_every_value_with_origin_and_the_deepspeed_dict():
    result = resolved(words("--print-config"))
    assert result.print_config
    text = describe(result)
    assert "optimizer.lr" in text and "--lr" in text and '"train_batch_size": 1' in text
    assert "processes: 1 = TP 1 x PP 1 x DP 1" in text


def table_of(text):
    """Value and origin of each option in the text of --print-config."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: " ".join(line[1:]) for line in lines if line and line[0] in all_options()}


def test_describe_shows_sizes_that_follow_from_others():
    flags = ["--deepnorm", "--checkpoint-activations", "--vocab-size", "259", "--global-batch-size", "6"]
    text = describe(resolved(words(*flags), 2))
    table = table_of(text)
    assert table["model.ffn_hidden_size"] == "128 derived: 4 x hidden_size"
    assert table["model.kv_channels"] == "8 derived: hidden_size / num_attention_heads"
    assert table["model.num_query_groups"] == "4 derived: num_attention_heads"
    assert table["model.max_position_embeddings"] == "16 derived: seq_length"
    assert table["model.deepnorm_alpha"].startswith("1.414213562373095")
    assert table["training.recompute_num_layers"] == "1 derived: chunks of one layer"
    assert table["optimizer.lr_decay_iters"] == "6 derived: train_iters"
    assert "batch: 6 samples = micro 1 x 3 accumulated x DP 2" in text
    assert "vocabulary: 259 ids, padded to 384" in text


def test_describe_shows_no_sizes_that_mean_nothing_or_are_given():
    flags = ["--swiglu", "--kv-channels", "16", "--position-embedding-type", "alibi", "--lr-decay-style", "constant"]
    table = table_of(describe(resolved(words(*flags))))
    assert table["model.ffn_hidden_size"] == "64 derived: 8/3 x hidden_size, a multiple of 64"
    assert table["model.kv_channels"] == "16 --kv-channels"
    assert table["model.max_position_embeddings"] == "null default"
    assert table["model.deepnorm_alpha"] == "null default"
    assert table["training.recompute_num_layers"] == "null default"
    assert table["optimizer.lr_decay_iters"] == "null default"


def test_draft_of_a_program_has_its_family():
    known = draft([], environ(), "bert")
    assert table_of(describe_draft(known))["model.model_type"] == '"bert" pretrain_bert.py'


def test_draft_of_a_run_with_problems_has_what_is_known():
    known = draft(["--model-preset", "gpt2_125m", "--print-config", "--micro-batch-size", "x"], environ())
    assert known.print_config
    text = describe_draft(known)
    table = table_of(text)
    assert table["model.hidden_size"] == "768 preset gpt2_125m"
    assert table["training.micro_batch_size"] == "null missing or wrong"
    assert table["optimizer.lr"] == "null missing or wrong"
    assert table["optimizer.min_lr"] == "0.0 default"
    assert list(table) == list(all_options())
    assert "--model-preset gpt2_125m: taken from" in text


@pytest.mark.parametrize(
    ("world", "origin"), [({}, "WORLD_SIZE, which is not set"), ({"WORLD_SIZE": "1"}, "WORLD_SIZE")]
)
def test_number_of_processes_says_where_it_comes_from(world, origin):
    _, (problem,) = collect(words("--tensor-model-parallel-size", "2"), {"DS_ACCELERATOR": "cpu", **world})
    assert problem.sources[-1] == Source("processes", "1", origin)


def test_with_vocab_size_fills_it_and_keeps_the_rest():
    result = resolved(words())
    filled = result.with_vocab_size(259)
    assert filled.run.model.vocab_size == 259
    assert filled.run.model.padded_vocab_size(2) == 512
    assert filled.origins["model.vocab_size"] == "derived: the tokenizer"
    assert result.run.model.vocab_size is None


def test_with_eod_id_fills_it_and_keeps_the_rest():
    result = resolved(words("--eod-mask-loss", "--reset-position-ids"))
    filled = result.with_eod_id(0)
    assert filled.run.data.eod_id == 0
    assert filled.run.data.document_options == ("reset_position_ids", "eod_mask_loss")
    assert filled.origins["data.eod_id"] == "derived: the tokenizer"
    assert result.run.data.eod_id is None


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [
            "--bf16",
            "--lr-warmup-fraction",
            "0.1",
            "--save",
            "x",
            "--save-interval",
            "2",
            "--data-path",
            "1",
            "a",
            "2",
            "b",
        ],
        ["--deepspeed_config", "zero3_offload", "--clip-grad", "0"],
        ["--pipeline-model-parallel-size", "2", "--global-batch-size", "8", "--vocab-size", "100"],
    ],
)
def test_written_files_given_back_resolve_to_the_same_run(tmp_path, extra):
    first = resolved(words(*extra), 4)
    write_resolved(first, tmp_path / "deep" / "folder")
    folder = tmp_path / "deep" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["deepspeed_config.json", "run_config.json"]
    assert RunConfig(**json.loads((folder / "run_config.json").read_text())) == first.run
    argv = ["--config", str(folder / "run_config.json"), "--deepspeed_config", str(folder / "deepspeed_config.json")]
    second = resolved(argv, 4)
    assert second.run == first.run
    assert second.deepspeed == first.deepspeed
    assert resolved(argv[:2], 4).run == first.run


def test_resolve_imports_neither_torch_nor_deepspeed_and_is_quick():
    code = (
        "import sys, time, json; start = time.process_time()\n"
        "from megatron_ds.config import resolve\n"
        f"resolve({words('--deepspeed_config', 'zero1_bf16')!r}, {environ()!r}, 'x')\n"
        "print(json.dumps([time.process_time() - start, [m for m in ('torch', 'deepspeed') if m in sys.modules]]))"
    )
    root = Path(__file__).parents[2]
    runs = [subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) for _ in range(3)]
    seconds, imported = zip(*(json.loads(run) for run in runs), strict=True)
    assert imported == ([], [], [])
    # Processor time, and the least of three, as other tests may share the machine.
    assert min(seconds) < 0.5
