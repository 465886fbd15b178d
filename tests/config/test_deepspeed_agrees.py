"""Asks the installed DeepSpeed whether our table of its keys is right, and whether it takes what we give it.

DeepSpeed is imported in a process of its own, so that the other tests of the config stay free of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_ds.config import deepspeed_kinds as kinds
from megatron_ds.config import resolve
from megatron_ds.config.deepspeed_keys import PASSED, REFUSED, known_keys
from megatron_ds.config.deepspeed_kinds import Kind
from megatron_ds.config.files import presets_folder
from tests.config.helpers import words

_ASK = """
import json, sys
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor import config as monitor
from deepspeed.runtime import config, precision_config
from deepspeed.runtime.zero import config as zero, leaf_module_config, offload_config
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
models = {
    "zero_optimization": zero.DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    "bf16": precision_config.DeepSpeedBF16Config,
    "fp16": precision_config.DeepSpeedFP16Config,
    "tensorboard": monitor.TensorBoardConfig,
    "wandb": monitor.WandbConfig,
    "csv_monitor": monitor.CSVConfig,
    "comet": monitor.CometConfig,
    "comms_logger": CommsLoggerConfig,
    "zero_optimization.leaf_module": leaf_module_config.DeepSpeedZeroLeafModuleConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}
keys = {}
for name, model in models.items():
    keys[name] = [k for key, f in model.model_fields.items() for k in (key, f.alias) if k]
given = json.load(sys.stdin)
read = []
for content in given["finals"]:
    c = config.DeepSpeedConfig(content)
    read.append([c.train_batch_size, c.gradient_clipping, c.zero_optimization_stage, c.grad_accum_dtype])
stumbled = {}
for key, content in given["samples"]:
    try:
        config.DeepSpeedConfig(content)
    except BaseException as error:
        stumbled[key] = repr(error)
kinds = {}
for name in models:
    for key, f in models[name].model_fields.items():
        kinds.update({f"{name}.{k}": str(f.annotation) for k in (key, f.alias) if k})
removed = list(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
removed += ["zero_optimization." + key for key in config._REMOVED_ZERO_CONFIG_KEYS]
print("\\nANSWER " + json.dumps({"keys": keys, "removed": removed, "kinds": kinds, "read": read, "stumbled": stumbled}))
"""

NAMES = sorted(path.stem for path in (presets_folder() / "deepspeed").glob("*.json"))


def _finals() -> list[dict[str, Any]]:
    return [
        resolve(words("--deepspeed_config", name, "--clip-grad", "0"), {"DS_ACCELERATOR": "cuda"}, "x").deepspeed
        for name in NAMES
    ]


# A value of each kind that our table lets through, and a word of DeepSpeed's own annotation for it.
KINDS: dict[Kind, tuple[Any, tuple[str, ...]]] = {
    kinds.SWITCH: (True, ("bool",)),
    kinds.COUNT: (0, ("int",)),
    kinds.POSITIVE: (5e8, ("int",)),
    kinds.LEVELS: (-1, ("int",)),
    kinds.FACTOR: (2, ("float",)),
    kinds.TEXT: ("none", ("str", "Path", "Enum")),
    kinds.NAMES: (["all_reduce"], ("list",)),
    kinds.NAME_OR_NAMES: ("layer", ("List[str]",)),
    kinds.AUTO_OR_NAMES: (["norm"], ()),
    kinds.DTYPE: ("fp32", ()),
    kinds.DTYPE_ANY_CASE: ("FP32", ()),
    kinds.LOG_LEVEL: ("info", ()),
    kinds.TAG_VALIDATION: ("Fail", ()),
    kinds.COMET_MODE: ("get", ("str",)),
}


def _samples() -> list[tuple[str, dict[str, Any]]]:
    """A config for each key that is passed on, with a value that our table lets through."""
    samples = []
    for block, keys in PASSED.items():
        for key, kind in keys.items():
            value = KINDS[kind][0]
            assert kind.accepts(value), kind.wanted
            content: Any = {key: value}
            for outer in reversed(block.split(".") if block else []):
                content = {outer: content}
            samples.append((f"{block}.{key}", {"train_batch_size": 1, **content}))
    return samples


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=json.dumps({"finals": _finals(), "samples": _samples()}),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.split("ANSWER ")[1])
    return result


def test_keys_of_every_block_with_a_schema_are_those_of_deepspeed(answer):
    for block, keys in answer["keys"].items():
        removed = {key.removeprefix(f"{block}.") for key, refusal in REFUSED.items() if refusal.removed}
        assert set(known_keys(block)) - removed == set(keys), block


def test_removed_keys_are_those_of_deepspeed(answer):
    assert {key for key, refusal in REFUSED.items() if refusal.removed} == set(answer["removed"])


def test_kinds_of_passed_keys_are_those_of_deepspeed(answer):
    for dotted, annotation in answer["kinds"].items():
        block, key = dotted.rsplit(".", 1)
        if key in PASSED[block]:
            assert any(word in annotation for word in KINDS[PASSED[block][key]][1]), dotted


def test_values_that_our_table_lets_through_are_read_by_deepspeed(answer):
    assert answer["stumbled"] == {}


def test_final_dicts_are_read_by_deepspeed_as_meant(answer):
    for final, (batch, clipping, stage, accumulation) in zip(_finals(), answer["read"], strict=True):
        assert batch == final["train_batch_size"]
        assert clipping == 0.0
        assert stage == final["zero_optimization"]["stage"]
        mixed = final["bf16"]["enabled"] or final["fp16"]["enabled"]
        assert accumulation == ("fp32" if mixed else None)
