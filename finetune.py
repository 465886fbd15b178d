#!/usr/bin/env python3
"""Finetune a model on a task: GLUE, RACE, or instruction tuning.

deepspeed finetune.py --task MNLI --train-data train.tsv --valid-data dev_matched.tsv --pretrained-checkpoint RUN ...
torchrun --nproc-per-node 4 finetune.py ...
python finetune.py --help
"""

from megatron_ds.cli.finetune import main

if __name__ == "__main__":
    main()
