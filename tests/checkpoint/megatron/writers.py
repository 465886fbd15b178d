"""Files as Megatron-LM and its forks write them, put together by hand from single heads and matrices.

Nothing of the package is used, so that what reads and writes these formats there is compared with something else.
"""

from __future__ import annotations

import enum
import random
import sys
import types
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.checkpoint.megatron.reference import FFN, HEADS, HIDDEN, LAYERS, POSITIONS, VOCAB, WIDTH, Gpt

PADDED = 64  # of VOCAB, for up to four ranks


def _slice(tensor: Tensor, rank: int, tp: int, dim: int = 0) -> Tensor:
    return tensor.chunk(tp, dim)[rank].clone()


def _rows(table: Tensor, rank: int, tp: int) -> Tensor:
    padding = torch.zeros(PADDED - len(table), table.shape[1])
    return _slice(torch.cat((table, padding)), rank, tp)


def qkv(parts: Mapping[str, Tensor], kind: str, rank: int, tp: int, version: float) -> Tensor:
    """Rows of one rank's queries, keys and values in the order of a checkpoint version."""
    query, key, value = (_slice(parts[f"{name}.{kind}"], rank, tp) for name in "qkv")  # [heads, WIDTH, ...]
    if version == 0:
        return torch.stack((query, key, value)).flatten(0, 2)
    if version == 1:
        return torch.stack((query, key, value), 2).flatten(0, 2)
    rows = []
    per_group = len(query) // len(key)
    for group in range(len(key)):
        rows += [*query[group * per_group : (group + 1) * per_group], key[group], value[group]]
    return torch.cat(rows)


def block(gpt: Gpt, layer: int, rank: int, tp: int, version: float = 3, value_first: bool = False) -> dict[str, Tensor]:
    """One rank's weights of a block, by classic names without what stands before them."""
    parts = gpt.layers[layer]
    state = {}
    for kind in ("weight", "bias"):
        if f"norm1.{kind}" in parts:
            state[f"input_layernorm.{kind}"] = parts[f"norm1.{kind}"].clone()
            state[f"post_attention_layernorm.{kind}"] = parts[f"norm2.{kind}"].clone()
        if gpt.qk_norm and f"q_norm.{kind}" in parts:
            state[f"self_attention.q_layernorm.{kind}"] = parts[f"q_norm.{kind}"].clone()
            state[f"self_attention.k_layernorm.{kind}"] = parts[f"k_norm.{kind}"].clone()
        if f"up.{kind}" not in parts:
            continue
        state[f"self_attention.query_key_value.{kind}"] = qkv(parts, kind, rank, tp, version)
        pair = [_slice(parts[f"{name}.{kind}"], rank, tp) for name in ("gate", "up") if f"{name}.{kind}" in parts]
        state[f"mlp.dense_h_to_4h.{kind}"] = torch.cat(pair[::-1] if value_first else pair)
        # Row-parallel: columns are cut, the bias is whole on every rank.
        for ours, theirs in (("dense", "self_attention.dense"), ("down", "mlp.dense_4h_to_h")):
            tensor = parts[f"{ours}.{kind}"]
            state[f"{theirs}.{kind}"] = _slice(tensor, rank, tp, 1) if kind == "weight" else tensor.clone()
    return state


def embedding(gpt: Gpt, rank: int, tp: int) -> dict[str, Tensor]:
    """One rank's embeddings, as a flat state dict."""
    state = {"word_embeddings.weight": _rows(gpt.outer["embeddings"], rank, tp)}
    if gpt.positions == "learned":
        state["position_embeddings.weight"] = gpt.outer["positions"].clone()
    if "types" in gpt.outer:
        state["tokentype_embeddings.weight"] = gpt.outer["types"].clone()
    for kind in ("weight", "bias") if gpt.embed_norm else ():
        state[f"word_embeddings.norm.{kind}"] = gpt.outer[f"embed_norm.{kind}"].clone()
    return state


def final_norm(gpt: Gpt) -> dict[str, Tensor]:
    return {kind: gpt.outer[f"final.{kind}"].clone() for kind in ("weight", "bias") if f"final.{kind}" in gpt.outer}


def head(gpt: Gpt, rank: int, tp: int) -> Tensor:
    return _rows(gpt.outer["embeddings" if gpt.tied else "head"], rank, tp)


def arguments(gpt: Gpt, tp: int, pp: int, **more: Any) -> Namespace:
    """What Megatron-LM of 2023 would have saved."""
    values = {
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "seq_length": POSITIONS,
        "max_position_embeddings": POSITIONS,
        "ffn_hidden_size": FFN,
        "kv_channels": WIDTH,
        "group_query_attention": gpt.groups != HEADS,
        "num_query_groups": gpt.groups if gpt.groups != HEADS else 1,
        "position_embedding_type": {"learned": "learned_absolute"}.get(gpt.positions, gpt.positions),
        "add_position_embedding": gpt.positions == "learned",
        "use_rotary_position_embeddings": gpt.positions == "rope",
        "normalization": "RMSNorm" if gpt.rms else "LayerNorm",
        "layernorm_epsilon": 1e-5,
        "add_bias_linear": gpt.biases,
        "swiglu": gpt.activation == "swiglu",
        "squared_relu": gpt.activation == "squared_relu",
        "bias_gelu_fusion": gpt.activation == "gelu_tanh",
        "openai_gelu": False,
        "onnx_safe": None,
        "apply_residual_connection_post_layernorm": gpt.post_ln,
        "apply_layernorm_1p": False,
        "qk_layernorm": gpt.qk_norm,
        "window_size": None if gpt.window == POSITIONS else (gpt.window - 1, 0),
        "untie_embeddings_and_output_weights": not gpt.tied,
        "num_experts": None,
        "make_vocab_size_divisible_by": 16,
        "padded_vocab_size": PADDED,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "params_dtype": torch.float32,
    }
    return Namespace(**{**values, **more})


@contextmanager
def class_of(name: str, made: type) -> Iterator[type]:
    """Lets pickle find a class under a foreign full name, as in the environment that wrote a file."""
    module_name, _, class_name = name.rpartition(".")
    packages = module_name.split(".")
    modules = [".".join(packages[: depth + 1]) for depth in range(len(packages))]
    made.__module__, made.__qualname__, made.__name__ = module_name, class_name, class_name
    kept = {module: sys.modules.get(module) for module in modules}
    try:
        for module in modules:
            sys.modules[module] = types.ModuleType(module)
        setattr(sys.modules[module_name], class_name, made)
        yield made
    finally:
        for module, before in kept.items():
            sys.modules.pop(module)
            if before is not None:
                sys.modules[module] = before


def rng_states() -> dict[str, Any]:
    """States of random generators, as they stand in every checkpoint."""
    return {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()},
    }


def write_classic(
    folder: Path,
    gpt: Gpt,
    tp: int,
    pp: int,
    version: float = 3,
    *,
    stack: str = "encoder",
    attention: str = "self_attention",
    chunks: int = 1,
    zipped: bool = True,
    **more: Any,
) -> Path:
    """``iter_0000007/mp_rank_*`` with a tracker; `chunks` of an interleaved schedule on each stage."""
    per_chunk = LAYERS // (pp * chunks)
    for stage in range(pp):
        for rank in range(tp):
            content: dict[str, Any] = {"iteration": 7, "args": arguments(gpt, tp, pp, **more), **rng_states()}
            if version:
                content["checkpoint_version"] = version
            for chunk in range(chunks):
                place = chunk * pp + stage
                layers = range(place * per_chunk, (place + 1) * per_chunk)
                model = classic_stage(
                    gpt, rank, tp, version, layers, place == 0, place == pp * chunks - 1, stack, attention
                )
                content["model" if chunks == 1 else f"model{chunk}"] = model
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")
            path = folder / "iter_0000007" / name / "model_optim_rng.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path, _use_new_zipfile_serialization=zipped)
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder


def classic_stage(
    gpt: Gpt, rank: int, tp: int, version: float, layers: range, first: bool, last: bool, stack: str, attention: str
) -> dict[str, Any]:
    """The state dict of one stage, with dicts inside of dicts."""
    inner: dict[str, Tensor] = {}
    for local, layer in enumerate(layers):
        for name, tensor in block(gpt, layer, rank, tp, version).items():
            inner[f"layers.{local}.{name.replace('self_attention', attention)}"] = tensor
    language_model: dict[str, Any] = {stack: inner}
    if first:
        flat = embedding(gpt, rank, tp)
        language_model["embedding"] = {
            name: {key.removeprefix(f"{name}."): tensor for key, tensor in flat.items() if key.startswith(name)}
            for name in dict.fromkeys(key.partition(".")[0] for key in flat)
        }
    if last:
        inner.update({f"final_layernorm.{kind}": tensor for kind, tensor in final_norm(gpt).items()})
        if not gpt.tied:
            language_model["output_layer"] = {"weight": head(gpt, rank, tp)}
    model: dict[str, Any] = {"language_model": language_model}
    if last and not first and gpt.shares_embeddings:
        model["word_embeddings_for_head"] = {"weight": head(gpt, rank, tp)}
    for name, tensor in bert_heads(gpt, rank, tp).items() if last else ():
        module, _, inner_name = name.partition(".")
        outer = language_model if module == "pooler" else model
        outer.setdefault(module, {})[inner_name] = tensor
    return model


def bert_heads(gpt: Gpt, rank: int, tp: int) -> dict[str, Tensor]:
    """What a BERT has behind its stack, by flat classic names; nothing for a GPT."""
    modules = ("pooler.", "lm_head.", "binary_head.", "classification_head.", "multichoice_head.")
    found = {name: tensor.clone() for name, tensor in gpt.outer.items() if name.startswith(modules)}
    if "lm_head.bias" in found:
        found["lm_head.bias"] = _slice(F.pad(found["lm_head.bias"], (0, PADDED - VOCAB)), rank, tp)
    return found


_CORE_NAMES = {
    "self_attention.query_key_value": "self_attention.linear_qkv",
    "self_attention.dense": "self_attention.linear_proj",
    "mlp.dense_h_to_4h": "mlp.linear_fc1",
    "mlp.dense_4h_to_h": "mlp.linear_fc2",
    "post_attention_layernorm": "pre_mlp_layernorm",
}
_FUSED_NAMES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


def core_stage(gpt: Gpt, rank: int, tp: int, stage: int, pp: int, *, transformer_engine: bool) -> dict[str, Any]:
    """Megatron core's flat state dict of one stage."""
    per_stage = LAYERS // pp
    model: dict[str, Any] = {}
    stack = "encoder" if "pooler.dense.weight" in gpt.outer else "decoder"
    if stage == 0:
        model.update({f"embedding.{name}": tensor for name, tensor in embedding(gpt, rank, tp).items()})
    for local in range(per_stage):
        prefix = f"{stack}.layers.{local}."
        for old, tensor in block(gpt, stage * per_stage + local, rank, tp).items():
            name = old
            for classic, core in (*_CORE_NAMES.items(), *(_FUSED_NAMES.items() if transformer_engine else ())):
                name = name.replace(classic, core)
            model[prefix + name] = tensor
        for matrix in ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"):
            model[f"{prefix}{matrix}._extra_state"] = None
    if stage == pp - 1:
        model.update({f"{stack}.final_layernorm.{kind}": tensor for kind, tensor in final_norm(gpt).items()})
        if pp > 1 or not gpt.tied:
            model["output_layer.weight"] = head(gpt, rank, tp)
        for name, tensor in bert_heads(gpt, rank, tp).items():
            core = name.replace("lm_head.layernorm", "lm_head.layer_norm").replace("lm_head.bias", "output_layer.bias")
            model[core] = tensor
    return model


def write_core(folder: Path, gpt: Gpt, tp: int, pp: int, *, transformer_engine: bool = True, **more: Any) -> Path:
    """Core's ``iter_0000007/mp_rank_*`` with a tracker."""

    class ModelType(enum.Enum):
        encoder_or_decoder = 1

    for stage in range(pp):
        for rank in range(tp):
            with class_of("megatron.core.enums.ModelType", ModelType):
                content = {
                    "args": arguments(gpt, tp, pp, model_type=ModelType.encoder_or_decoder, **more),
                    "checkpoint_version": 3.0,
                    "iteration": 7,
                    "model": core_stage(gpt, rank, tp, stage, pp, transformer_engine=transformer_engine),
                    "rng_state": [rng_states()],
                }
                name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")
                path = folder / "iter_0000007" / name / "model_optim_rng.pt"
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(content, path)
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder


def write_layers(folder: Path, gpt: Gpt, tp: int, first_block: int, norm_gap: int, value_first: bool = False) -> Path:
    """DeepSpeed's files of layers: embeddings at 01, blocks from `first_block`, the norm `norm_gap` behind the last."""
    tag = folder / "global_step7"
    tag.mkdir(parents=True)
    norm_at = first_block + LAYERS - 1 + norm_gap
    for rank in range(tp):
        layers: dict[int, dict[str, Tensor]] = {1: embedding(gpt, rank, tp), norm_at: final_norm(gpt)}
        layers |= {first_block + i: block(gpt, i, rank, tp, value_first=value_first) for i in range(LAYERS)}
        if not gpt.tied:
            layers[norm_at + 1] = {"lm_head.weight": head(gpt, rank, tp)}
        for number, state in layers.items():
            torch.save(state, tag / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    (folder / "latest").write_text(tag.name)
    return tag


def write_bloom(folder: Path, gpt: Gpt, tp: int, **more: Any) -> Path:
    """BLOOM's fork: blocks from 03, a step without weights before the final norm, enums among the arguments."""
    tag = write_layers(folder, gpt, tp, first_block=3, norm_gap=2, value_first=True)

    class PositionEmbeddingType(enum.Enum):
        rotary = 1
        absolute = 2
        alibi = 3

    class DynamicLossScaler:
        def __init__(self) -> None:
            self.cur_scale = 4096

    kinds = {"rope": "rotary", "learned": "absolute", "alibi": "alibi"}
    glu = gpt.activation if gpt.activation.endswith("glu") else None
    with (
        class_of("megatron.enums.PositionEmbeddingType", PositionEmbeddingType),
        class_of("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", DynamicLossScaler),
    ):
        said = arguments(
            gpt,
            tp,
            1,
            position_embedding_type=PositionEmbeddingType[kinds[gpt.positions]],
            embed_layernorm=gpt.embed_norm,
            glu_activation=glu,
            **more,
        )
        for name in ("use_rotary_position_embeddings", "add_position_embedding", "normalization", "swiglu"):
            delattr(said, name)
        for rank in range(tp):
            content = {"module": None, "args": said, "iteration": 7, "checkpoint_version": 3.0, **rng_states()}
            content["loss_scaler"] = DynamicLossScaler()
            torch.save(content, tag / f"mp_rank_{rank:02d}_model_states.pt")
    return folder


def write_microsoft(folder: Path, gpt: Gpt, tp: int, first_block: int = 2) -> Path:
    """Microsoft's fork: blocks from 02 (older versions 03), the norm right behind them, both trackers."""
    tag = write_layers(folder, gpt, tp, first_block=first_block, norm_gap=1)
    said = arguments(gpt, tp, 1, num_key_value_heads=gpt.groups, num_experts=[1])
    said.normalization = said.normalization.lower()
    for name in ("group_query_attention", "num_query_groups", "position_embedding_type"):
        delattr(said, name)
    for rank in range(tp):
        content = {"module": None, "args": said, "iteration": 7, "checkpoint_version": 3.0}
        torch.save(content, tag / f"mp_rank_{rank:02d}_model_states.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder
