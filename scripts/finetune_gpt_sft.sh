#!/usr/bin/env bash
# Tunes a GPT on prompts and responses; the loss is that of the responses. On all GPUs of this machine, or of several.
#
#   bash scripts/finetune_gpt_sft.sh --pretrained-checkpoint RUN --save OUT --train-data train.jsonl \
#       --valid-data valid.jsonl
#
# Inputs: JSON lines {"prompt": …, "response": …} or {"messages": [{"role": …, "content": …}, …]}, and a GPT: a run of
# pretrain_gpt*.sh at any layout, or a folder of Hugging Face or Megatron-LM. Model and tokenizer are the checkpoint's.
# Arguments: those of finetune.py (docs/config.md): --no-packing, TP, PP and ZeRO by their flags. Without
# --deepspeed_config the run is gpt_sft.
# Environment: GPUS_PER_NODE (all of them); for several machines NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one
# start on each; or HOSTFILE, lines "NAME slots=GPUS", with one start for all.
# SMOKE=1: 24 examples in one process, on the GPT of pretrain_gpt.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
smoke finetune_gpt_sft

launch_nodes "$ROOT/finetune.py" --deepspeed_config gpt_sft "${TOY[@]}" "$@"
