#!/usr/bin/env bash
# Pretrains a GPT with tensor x pipeline x data parallelism (TP x PP x DP), on one machine or several.
#
#   TP=2 PP=2 bash scripts/pretrain_gpt_3d.sh --deepspeed_config gpt2_1p3b --data-path DATA/corpus_text_document \
#       --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --save RUN
#
# Arguments: those of pretrain_gpt.py (docs/config.md). Without --deepspeed_config it is gpt2_1p3b.
# Environment: TP and PP (1 when not given); DP, the copies of the model (as many as the GPUs allow; 1 on a CPU);
# HOSTFILE, for several machines: a line "NAME slots=GPUS" each. All slots are used, so DP follows from their number.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
find_gpus

TP=${TP:-1} PP=${PP:-1}
train=("$ROOT/pretrain_gpt.py" --deepspeed_config gpt2_1p3b
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" "$@")
if [ -z "${HOSTFILE:-}" ]; then
    model=$((TP * PP))
    DP=${DP:-$((GPUS >= model ? GPUS / model : 1))}
    launch $((model * DP)) "${train[@]}"
elif [ -r "$HOSTFILE" ]; then
    echo "\$ deepspeed --hostfile $HOSTFILE ${train[*]}"
    "$PYTHON" -m deepspeed.launcher.runner --hostfile "$HOSTFILE" "${train[@]}"
else
    # The launcher would only warn, and train on this machine alone.
    echo "HOSTFILE=$HOSTFILE can't be read: give the path of a file with a line \"NAME slots=GPUS\" per machine." >&2
    exit 2
fi
