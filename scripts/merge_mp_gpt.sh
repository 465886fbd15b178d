#!/usr/bin/env bash
# Puts a GPT's shards of all tensor-parallel ranks and pipeline stages together into one file.
#
#   bash scripts/merge_mp_gpt.sh --input RUN --output gpt.safetensors
#
# Inputs: the folder of a run, or of one of its checkpoints. The output has whole weights under their names in
# manifest.json, without padding of the vocabulary. No option says how it was cut: the checkpoint does.
# Arguments: those of `megatron-ds checkpoint merge`: --step, --dtype; PATH.pt for torch.load.
# SMOKE=1: the checkpoint of pretrain_gpt_distributed_with_mp.sh, TP2 x PP2.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
smoke merge_mp_gpt

run "$PYTHON" -m megatron_ds checkpoint merge "${TOY[@]}" "$@"
