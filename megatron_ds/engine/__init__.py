"""The model-wrapping layer: the only part that knows DeepSpeed.

Import `megatron_ds.engine.build` for `build_engine`; this package file stays light, because importing DeepSpeed
takes seconds.
"""
