"""The training loop, and what it reports. This file imports nothing, so that checks before the start stay quick."""
