#!/usr/bin/env bash
# Scores a GPT without training it: the last words of LAMBADA, or the perplexity of WikiText-103.
#
#   bash scripts/evaluate_zeroshot_gpt.sh --load RUN --valid-data lambada_test.jsonl --output scores.json
#   TASK=WIKITEXT103 bash scripts/evaluate_zeroshot_gpt.sh --load RUN --valid-data wiki.test.tokens
#
# Inputs: a run of pretrain_gpt*.sh at any layout, and LAMBADA's JSON lines {"text": …} or WikiText's raw text.
# Arguments: those of `megatron-ds evaluate` (docs/tasks.md), such as --batch-size, and TP and PP by their flags.
# Environment: TASK, LAMBADA (whole last words: --strict-lambada) or another task, such as lm_eval:NAME, and
# GPUS_PER_NODE (all of them); for several machines NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, with one start on
# each; or HOSTFILE, lines "NAME slots=GPUS", with one start for all.
# SMOKE=1: the GPT of pretrain_gpt.sh on a few texts, in one process.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
TASK=${TASK:-LAMBADA} extra=
[[ $TASK != lm_eval:* ]] || extra=eval
prepare_environment $extra
find_gpus
smoke "evaluate_zeroshot_gpt_$TASK"
options=(--task "$TASK")
[ "$TASK" != LAMBADA ] || options+=(--strict-lambada)

launch_nodes --module megatron_ds evaluate "${options[@]}" "${TOY[@]}" "$@"
