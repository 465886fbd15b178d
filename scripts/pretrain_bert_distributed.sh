#!/usr/bin/env bash
# Pretrains a BERT with data parallelism and ZeRO-1 on all GPUs of this machine, or of several.
#
#   bash scripts/pretrain_bert_distributed.sh --data-path DATA/corpus_text_sentence \
#       --tokenizer-type BertWordPieceLowerCase --vocab-file bert-large-uncased-vocab.txt --save RUN
#
# Inputs: token files of sentences (MODEL=bert preprocess_data.sh) and the vocabulary.
# Arguments: those of pretrain_bert.py (docs/config.md), such as --zero-stage 2. Without --deepspeed_config the run is
# bert_large.
# Environment: GPUS_PER_NODE (all of them); for several machines NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one
# start on each; or HOSTFILE, lines "NAME slots=GPUS", with one start for all.
# SMOKE=1: 10 steps of a toy in two processes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
smoke pretrain_bert_distributed

launch_nodes "$ROOT/pretrain_bert.py" --deepspeed_config bert_large "${TOY[@]}" "$@"
