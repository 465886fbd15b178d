"""How a process ends: with a message a person can use, and an exit code on every rank."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from megatron_ds.errors import MegatronDsError
from megatron_ds.utils.output import drop_output_if_unread

# Processes of one host start within a second or two of each other, on busy cores too.
SECONDS_FOR_FIRST_REPORT = 4.0

# What a shell says of a program that a closed pipe ended: 128 + SIGPIPE.
_OUTPUT_UNREAD = 141


def run_or_exit(main: Callable[[], None]) -> None:
    """Runs a command; on an error, ends the process with the error's code.

    Where nobody reads the output any more, as with ``| head``, the command just ends.

    Args:
        main: the command.
    """
    try:
        main()
    except MegatronDsError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        if not drop_output_if_unread():
            _fail(traceback.format_exc(), 1)
        os._exit(_OUTPUT_UNREAD)
    except Exception:
        _fail(traceback.format_exc(), 1)
    finally:
        drop_output_if_unread()


def report_before_launch(error: MegatronDsError) -> NoReturn:
    """Ends a process whose peers found the same problems: the first one of each host tells them in full.

    Raises:
        SystemExit: always, with the error's code.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(error, file=sys.stderr, flush=True)
    else:
        # A launcher ends all processes when one of them exits: let that be the one that speaks.
        time.sleep(SECONDS_FOR_FIRST_REPORT)
        # Still here, so there is no launcher, or this process is the only one with a problem.
        print(f"{rank_prefix()}{_in_one_line(error)}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code)


def rank_prefix() -> str:
    """``[rank 3] `` where there are several processes."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return "" if alone else f"[rank {os.environ.get('RANK', '?')}] "


def _in_one_line(error: MegatronDsError) -> str:
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    return f"stopped, {type(error).__name__}: {error.problems[0].message}{more}"


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"{rank_prefix()}{message}", file=sys.stderr, flush=True)
    drop_output_if_unread()
    sys.stdout.flush()
    # Not sys.exit: threads of a process group whose other members wait for this rank would keep the process alive.
    os._exit(exit_code)
