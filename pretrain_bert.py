#!/usr/bin/env python3
"""Pretrain a BERT.

deepspeed pretrain_bert.py --deepspeed_config configs/runs/bert_large.json --data-path ...
torchrun --nproc-per-node 4 pretrain_bert.py ...
python pretrain_bert.py --help
"""

from megatron_ds.cli.pretrain import main

if __name__ == "__main__":
    main("bert")
