#!/usr/bin/env bash
# Pretrains a GPT on one GPU, or in one process on a CPU.
#
#   bash scripts/pretrain_gpt.sh --data-path DATA/corpus_text_document --tokenizer-type GPT2BPETokenizer \
#       --vocab-file vocab.json --merge-file merges.txt --save RUN
#
# Inputs: token files (preprocess_data.sh) and the tokenizer's files.
# Arguments: those of pretrain_gpt.py (docs/config.md). Without --deepspeed_config the run is gpt2_350m.
# SMOKE=1: 10 steps of a toy.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus
smoke pretrain_gpt

# Of a flag that stands twice the last one counts, so the arguments go last.
run "$PYTHON" "$ROOT/pretrain_gpt.py" --deepspeed_config gpt2_350m "${TOY[@]}" "$@"
