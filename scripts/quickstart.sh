#!/usr/bin/env bash
# Everything once, on a machine with nothing but Python: environment, text, tokenizer, training in two halves, result.
# `bash scripts/quickstart.sh` takes no arguments. It writes into .venv/ and quickstart_run/; a second start uses the
# environment and the data again and trains anew. Layout: TP2 x PP2 on 4 GPUs or a CPU, TP2 on 2 GPUs, else one process.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"

stage() { printf '\n=== %s   (%d s since the start)\n' "$1" "$SECONDS"; }

stage "1/6 Environment"
prepare_environment
find_gpus
case $GPUS in
    0) processes=4 layout=() ;;
    1) processes=1 layout=(--bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1) ;;
    2 | 3) processes=2 layout=(--bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1) ;;
    *) processes=4 layout=(--bf16) ;;
esac
data=quickstart_run/data run=quickstart_run/gpt_$(date +%Y%m%d_%H%M%S)
tokenizer=(--tokenizer-type HFTokenizer --tokenizer-name-or-path "$data/tokenizer.json")
train=(pretrain_gpt.py --deepspeed_config configs/runs/gpt_tiny_tp2_pp2.json "${layout[@]}" "${tokenizer[@]}"
    --data-path "$data/corpus_text_document" --save "$run")
echo "$("$PYTHON" --version), $GPUS GPUs: training on $processes processes"

stage "2/6 Text and tokenizer from Python's own sources"
"$PYTHON" scripts/quickstart_data.py "$data"
stage "3/6 Text to tokens"
if [ -e "$data/corpus_text_document.idx" ]; then
    echo "$data/corpus_text_document: from an earlier start"
else
    "$PYTHON" -m megatron_ds preprocess --input "$data/text.jsonl" --output-prefix "$data/corpus" --append-eod "${tokenizer[@]}"
fi
stage "4/6 Training, the first half of 180 steps"
launch "$processes" "${train[@]}" --train-iters 90 --lr-decay-iters 180
stage "5/6 Training, the second half, from the checkpoint"
launch "$processes" "${train[@]}" --load "$run"
stage "6/6 Result"
"$PYTHON" scripts/quickstart_report.py "$run"
