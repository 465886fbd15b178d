"""The optimizer: its parameter groups and its learning-rate schedule."""
