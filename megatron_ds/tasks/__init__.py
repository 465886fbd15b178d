"""What a pretrained model is used for: finetuning on a task's examples, and evaluation without any training."""
