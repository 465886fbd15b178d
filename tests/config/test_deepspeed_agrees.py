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

from megatron_ds.config import resolve
from megatron_ds.config.deepspeed_keys import COUNTS, PASSED, REFUSED, SHARES, TEXTS, known_keys
from megatron_ds.config.files import presets_folder
from tests.config.helpers import words

_ASK = """
import json, sys
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor import config as monitor
from deepspeed.runtime import config, precision_config
from deepspeed.runtime.zero import config as zero, offload_config
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
}
keys = {}
for name, model in models.items():
    keys[name] = [k for key, f in model.model_fields.items() for k in (key, f.alias) if k]
read = []
for content in json.load(sys.stdin):
    c = config.DeepSpeedConfig(content)
    read.append([c.train_batch_size, c.gradient_clipping, c.zero_optimization_stage, c.grad_accum_dtype])
kinds = {}
for name in [name for name in models if name.startswith("zero") or name in ("bf16", "fp16")]:
    for key, f in models[name].model_fields.items():
        kinds.update({f"{name}.{k}": str(f.annotation) for k in (key, f.alias) if k})
removed = list(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
removed += ["zero_optimization." + key for key in config._REMOVED_ZERO_CONFIG_KEYS]
print("\\nANSWER " + json.dumps({"keys": keys, "removed": removed, "kinds": kinds, "read": read}))
"""

NAMES = sorted(path.stem for path in (presets_folder() / "deepspeed").glob("*.json"))


def _finals() -> list[dict[str, Any]]:
    return [
        resolve(words("--deepspeed_config", name, "--clip-grad", "0"), {"DS_ACCELERATOR": "cuda"}, "x").deepspeed
        for name in NAMES
    ]


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=json.dumps(_finals()),
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
            count, share, text = key.removeprefix("stage3_") in COUNTS, key in SHARES, key in TEXTS
            expected = "int" if count else "float" if share else ("Path", "Enum") if text else "bool"
            assert any(word in annotation for word in ([expected] if isinstance(expected, str) else expected)), dotted


def test_final_dicts_are_read_by_deepspeed_as_meant(answer):
    for final, (batch, clipping, stage, accumulation) in zip(_finals(), answer["read"], strict=True):
        assert batch == final["train_batch_size"]
        assert clipping == 0.0
        assert stage == final["zero_optimization"]["stage"]
        mixed = final["bf16"]["enabled"] or final["fp16"]["enabled"]
        assert accumulation == ("fp32" if mixed else None)
