"""The contenders of `benchmarks.train_step`: ours and the peers, each run in processes of its own."""
