"""Instruction tuning: prompts and responses, or conversations."""
