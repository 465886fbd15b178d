#!/usr/bin/env bash
# Pretrains a GPT with data parallelism on all GPUs of this machine, or in one process where there are none.
#
#   bash scripts/pretrain_gpt.sh --deepspeed_config gpt2_125m --data-path DATA/corpus_text_document \
#       --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --save RUN
#
# Arguments: those of pretrain_gpt.py (docs/config.md). Without --deepspeed_config it is gpt2_125m.
# Environment: PROCESSES, to use another number of GPUs, or several processes on a CPU.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus

# Of a flag that stands twice the last one counts, so the arguments go last.
launch "${PROCESSES:-$((GPUS > 0 ? GPUS : 1))}" "$ROOT/pretrain_gpt.py" --deepspeed_config gpt2_125m "$@"
