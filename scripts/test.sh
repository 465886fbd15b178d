#!/usr/bin/env bash
# The test suite, on a machine with nothing but Python: `bash scripts/test.sh [--gpu] [arguments of pytest]`.
# With --gpu: only the tests that need CUDA. Without arguments: all others, in several processes side by side.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

extra=dev
for argument in "$@"; do
    [ "$argument" != --gpu ] || extra=test
done
prepare_environment "$extra"
cd "$ROOT"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ $# = 0 ]; then
    # One test alone leaves cores idle: ranks wait for each other, and launchers for their children. Each process works
    # through its own part of the list, so that tests of a file share what they have worked out, and takes from the
    # others when it is done.
    # nproc would tell OMP_NUM_THREADS.
    cores=$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
    set -- --numprocesses "$((cores < 8 ? cores : 8))" --dist worksteal
fi
exec "$PYTHON" -m pytest "$@"
