#!/usr/bin/env bash
# Pretrains a GPT with data parallelism and ZeRO-1 on all GPUs of this machine, or of several.
#
#   bash scripts/pretrain_gpt_distributed.sh --data-path DATA/corpus_text_document --tokenizer-type GPT2BPETokenizer \
#       --vocab-file vocab.json --merge-file merges.txt --save RUN
#
# Inputs: token files (preprocess_data.sh) and the tokenizer's files.
# Arguments: those of pretrain_gpt.py (docs/config.md), such as --zero-stage 2. Without --deepspeed_config the run is
# gpt2_350m.
# Environment: GPUS_PER_NODE (all of them); for several machines NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one
# start on each; or HOSTFILE, lines "NAME slots=GPUS", with one start for all.
# SMOKE=1: 10 steps of a toy in two processes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
smoke pretrain_gpt_distributed

launch_nodes "$ROOT/pretrain_gpt.py" --deepspeed_config gpt2_350m "${TOY[@]}" "$@"
