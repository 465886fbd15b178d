#!/usr/bin/env bash
# The test suite, on a machine with nothing but Python: `bash scripts/test.sh [--gpu] [arguments of pytest]`.
# With --gpu: only the tests that need CUDA.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

extra=dev
for argument in "$@"; do
    [ "$argument" != --gpu ] || extra=test
done
prepare_environment "$extra"
cd "$ROOT"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$PYTHON" -m pytest "$@"
