"""How a process ends: with a message a person can use, and an exit code on every rank."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from megatron_ds.errors import MegatronDsError


def run_or_exit(main: Callable[[], None]) -> None:
    """Runs a command; on an error, ends the process with the error's code.

    Args:
        main: the command.
    """
    try:
        main()
    except MegatronDsError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception:
        _fail(traceback.format_exc(), 1)


def report_before_launch(error: MegatronDsError) -> NoReturn:
    """Ends a process whose peers found the same problems: the first one of each host tells.

    Raises:
        SystemExit: always, with the error's code.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(error, file=sys.stderr, flush=True)
    else:
        # The launcher ends all processes when the first one exits: let that be the one that speaks.
        time.sleep(3)
    raise SystemExit(error.exit_code)


def _fail(message: str, exit_code: int) -> NoReturn:
    rank = os.environ.get("RANK")
    prefix = f"[rank {rank}] " if rank is not None and os.environ.get("WORLD_SIZE", "1") != "1" else ""
    print(f"{prefix}{message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    # Not sys.exit: threads of a process group whose other members wait for this rank would keep the process alive.
    os._exit(exit_code)
