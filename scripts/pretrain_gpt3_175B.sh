#!/usr/bin/env bash
#SBATCH --job-name=gpt3_175b
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --signal=TERM@900
#SBATCH --output=%x_%j.log
# Pretrains GPT-3 175B under Slurm: TP8 x PP16 x DP8 on 128 machines with 8 GPUs. Submit it from the repository's root:
#
#   sbatch --time=24:00:00 scripts/pretrain_gpt3_175B.sh --data-path DATA/corpus_text_document \
#       --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --save RUN --save-interval 500
#
# Inputs: token files (preprocess_data.sh) and the tokenizer's files, where all machines can read them.
# Arguments: those of pretrain_gpt.py (docs/config.md); --load RUN in the next job. The run is gpt3_175b. A quarter of an
# hour before the job's time is over, Slurm sends SIGTERM, and the run saves and ends.
# Environment: MASTER_ADDR (the first machine), MASTER_PORT (6000).
# SMOKE=1: 10 steps of a toy in TP x PP processes (2 each), without Slurm; inside of a job in all of its tasks.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
[ -e "$here/lib.sh" ] || here=${SLURM_SUBMIT_DIR:-.}/scripts # sbatch starts a copy of this file elsewhere
. "$here/lib.sh"
prepare_environment
find_gpus
smoke pretrain_gpt3_175B

train=("$ROOT/pretrain_gpt.py" --deepspeed_config gpt3_175b "${TOY[@]}" "$@")
if [ -n "${SLURM_JOB_ID:-}" ]; then
    export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
    export MASTER_PORT=${MASTER_PORT:-6000}
    run srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
        LOCAL_WORLD_SIZE=${SLURM_STEP_TASKS_PER_NODE%%[(,]*} exec "$0" "$@"' "$PYTHON" "${train[@]}"
elif [ "${SMOKE:-}" = 1 ]; then
    launch_nodes "${train[@]}"
else
    echo "This is a Slurm job: sbatch scripts/pretrain_gpt3_175B.sh …; else pretrain_gpt_distributed_with_mp.sh" >&2
    exit 2
fi
