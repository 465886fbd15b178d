#!/usr/bin/env bash
# Finetunes a BERT on RACE with data parallelism and ZeRO-1 on all GPUs of this machine, or of several.
#
#   bash scripts/finetune_race_distributed.sh --pretrained-checkpoint RUN --save OUT --train-data RACE/train \
#       --valid-data RACE/dev --test-data RACE/test
#
# Inputs: RACE's folders, each with middle/ and high/, and a BERT: a run of pretrain_bert*.sh at any layout, or a folder
# of Hugging Face or Megatron-LM. Model and tokenizer are the checkpoint's.
# Arguments: those of finetune.py (docs/config.md); TP, PP and ZeRO by their flags. Without --deepspeed_config the run is
# race.
# Environment: GPUS_PER_NODE (all of them); for several machines NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one
# start on each; or HOSTFILE, lines "NAME slots=GPUS", with one start for all.
# SMOKE=1: 24 questions in two processes, on the BERT of pretrain_bert.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment eval
find_gpus
smoke finetune_race_distributed

launch_nodes "$ROOT/finetune.py" --deepspeed_config race "${TOY[@]}" "$@"
