"""``python -m megatron_ds COMMAND``: the `megatron-ds` command of this interpreter, whatever is first on the PATH."""

from megatron_ds.cli.main import main

if __name__ == "__main__":
    main()
