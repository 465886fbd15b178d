#!/usr/bin/env bash
# Pretrains a GPT with tensor x pipeline x data parallelism (TP x PP x DP), on one machine or several.
#
#   TP=2 PP=2 bash scripts/pretrain_gpt_distributed_with_mp.sh --data-path DATA/corpus_text_document \
#       --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --save RUN
#
# Inputs: token files (preprocess_data.sh) and the tokenizer's files.
# Arguments: those of pretrain_gpt.py (docs/config.md). Without --deepspeed_config the run is gpt2_1p3b.
# Environment: TP and PP (2 each); what is left of all processes is DP. GPUS_PER_NODE (all of them); for several machines
# NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one start on each; or HOSTFILE, lines "NAME slots=GPUS", with one
# start for all.
# SMOKE=1: 10 steps of a toy in TP x PP processes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
TP=${TP:-2} PP=${PP:-2}
[ "$GPUS" != 0 ] || GPUS_PER_NODE=${GPUS_PER_NODE:-$((TP * PP))}
smoke pretrain_gpt_distributed_with_mp

launch_nodes "$ROOT/pretrain_gpt.py" --deepspeed_config gpt2_1p3b \
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" "${TOY[@]}" "$@"
