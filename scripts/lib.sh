# Functions that the scripts share. Source it: `. "$(dirname "$0")/lib.sh"`. Needs bash, and Python 3.10 to 3.13.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Prints the first Python on PATH that the package runs on.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.10 python; do
        if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "No Python 3.10 to 3.13 on PATH: install one, or put its folder first on PATH." >&2
    return 1
}

# prepare_environment [EXTRA]: finds or makes a Python that can run this checkout and exports PYTHON.
# First choice is the active virtual environment or the Python on PATH, when nothing is missing there: it stays as it
# is. An active environment that lacks something gets it. Else .venv is made here; it sees an installed torch.
prepare_environment() {
    local extra=${1:-} python
    python=${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}
    [ -n "$python" ] || python=$(find_python) || return
    # The checkout comes first, also for the processes of a launcher, whatever else is installed.
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    if [ "${VIRTUAL_ENV:-}" != "$ROOT/.venv" ] && _has_everything "$python" "$extra"; then
        PYTHON=$python
    else
        if [ -z "${VIRTUAL_ENV:-}" ]; then
            [ -x "$ROOT/.venv/bin/python" ] || _make_venv "$python" || return
            python=$ROOT/.venv/bin/python
        fi
        _install "$python" "$extra" || return
        PYTHON=$python
    fi
    export PYTHON PATH="$(dirname "$PYTHON"):$PATH"
    # Kernels that DeepSpeed compiles are kept with this checkout: those of another torch would not load.
    export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$ROOT/.cache/torch_extensions/$("$PYTHON" -c 'from importlib.metadata import version; print(version("torch"))')}
}

_has_everything() {
    local missing
    missing=$("$1" "$ROOT/scripts/requirements.py" missing "$2" 2>/dev/null) && [ -z "$missing" ]
}

_make_venv() {
    echo "Making $ROOT/.venv with $("$1" --version)"
    "$1" -m venv "$ROOT/.venv" || return
    # Where torch is installed for that Python, .venv looks there after its own packages. `--system-site-packages`
    # would not do: it misses the packages of a Python that lives in a virtual environment itself.
    if [ -n "$("$1" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null)" ]; then
        "$1" -c 'import site, sysconfig; print(*dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]), sep="\n")' \
            >"$("$ROOT/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base_packages.pth"
    fi
}

# Installs this checkout with its requirements, unless that was done before with the same requirements.
_install() {
    local python=$1 extra=$2 stamp wanted constraints
    stamp=$("$python" -c 'import sys; print(sys.prefix)')/megatron_ds_installed${extra:+_$extra}
    wanted="$ROOT $(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum)"
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    echo "Installing the package and what it needs into $(dirname "$(dirname "$python")") (minutes, once)"
    constraints=$(mktemp)
    "$python" "$ROOT/scripts/requirements.py" constraints >"$constraints" &&
        "$python" -m pip install -qq --disable-pip-version-check -c "$constraints" -e "$ROOT${extra:+[$extra]}"
    local status=$?
    rm -f "$constraints"
    [ "$status" = 0 ] && echo "$wanted" >"$stamp"
    return "$status"
}

# smoke JOB: with SMOKE=1, fills TOY with the flags that make a job small, and makes the data that they name
# (smoke/job.sh). Else TOY is empty.
smoke() {
    TOY=()
    [ "${SMOKE:-}" != 1 ] || . "$ROOT/scripts/smoke/job.sh" "$1"
}

# Sets GPUS to the number of GPUs that torch can use here; a smoke run uses none.
find_gpus() {
    [ "${SMOKE:-}" != 1 ] || export CUDA_VISIBLE_DEVICES=
    GPUS=0
    if [ -n "${CUDA_VISIBLE_DEVICES-all}" ]; then
        GPUS=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') || return
    fi
    # DeepSpeed's launcher would look again, and warn.
    [ "$GPUS" != 0 ] || export DS_ACCELERATOR=cpu
}

# launch PROCESSES [OPTION OF DEEPSPEED…] SCRIPT [ARGUMENT…]: the `deepspeed` command of $PYTHON (the one on PATH may be
# another's), which is printed; of the launcher's own messages only errors. Call find_gpus first.
launch() {
    local where=(--num_gpus "$1")
    # Given --num_gpus, the launcher takes the first GPUs of the host, whatever CUDA_VISIBLE_DEVICES says.
    if [ "$GPUS" != 0 ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        where=(--include "localhost:$(cut -d, -f "1-$1" <<<"$CUDA_VISIBLE_DEVICES")")
    fi
    echo "\$ deepspeed ${where[*]} ${*:2}"
    "$PYTHON" -m deepspeed.launcher.runner --quiet "${where[@]}" "${@:2}"
}

# launch_nodes [OPTION OF THE LAUNCHER…] SCRIPT [ARGUMENT…]: GPUS_PER_NODE processes on this machine, and as many on each
# of the NNODES - 1 others, where the same command runs with another NODE_RANK. With HOSTFILE, DeepSpeed's launcher
# starts all of them by ssh. GPUS_PER_NODE is all GPUs when not given. Call find_gpus first.
launch_nodes() {
    local launcher processes=${GPUS_PER_NODE:-$((GPUS > 0 ? GPUS : 1))}
    if [ -n "${HOSTFILE:-}" ]; then
        if [ ! -r "$HOSTFILE" ]; then
            # The launcher would only warn, and train on this machine alone.
            echo "HOSTFILE=$HOSTFILE can't be read: give the path of a file with a line \"NAME slots=GPUS\" per machine." >&2
            return 2
        fi
        launcher=(deepspeed.launcher.runner --hostfile "$HOSTFILE")
    elif [ "${NNODES:-1}" = 1 ]; then
        launcher=(torch.distributed.run --standalone --nproc-per-node "$processes")
    else
        : "${NODE_RANK:?with NNODES, give the number of this machine, from 0}"
        : "${MASTER_ADDR:?with NNODES, give the name of machine 0}"
        launcher=(torch.distributed.run --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$processes"
            --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-6000}")
    fi
    run "$PYTHON" -m "${launcher[@]}" "$@"
}

# run COMMAND…: prints a command, and runs it.
run() {
    echo "\$ $*"
    "$@"
}
