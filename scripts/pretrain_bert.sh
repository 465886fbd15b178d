#!/usr/bin/env bash
# Pretrains a BERT on one GPU, or in one process on a CPU.
#
#   bash scripts/pretrain_bert.sh --data-path DATA/corpus_text_sentence \
#       --tokenizer-type BertWordPieceLowerCase --vocab-file bert-large-uncased-vocab.txt --save RUN
#
# Inputs: token files of sentences (MODEL=bert preprocess_data.sh) and the vocabulary.
# Arguments: those of pretrain_bert.py (docs/config.md). Without --deepspeed_config the run is bert_large.
# SMOKE=1: 10 steps of a toy.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
smoke pretrain_bert

# Of a flag that stands twice the last one counts, so the arguments go last.
run "$PYTHON" "$ROOT/pretrain_bert.py" --deepspeed_config bert_large "${TOY[@]}" "$@"
