#!/usr/bin/env python3
"""Pretrain a GPT.

deepspeed pretrain_gpt.py --deepspeed_config configs/runs/gpt_tiny_tp2_pp2.json --data-path ...
torchrun --nproc-per-node 4 pretrain_gpt.py ...
python pretrain_gpt.py --help
"""

from megatron_ds.cli.pretrain import main

if __name__ == "__main__":
    main()
