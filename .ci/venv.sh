# Sourced by ./run and ./check: a virtual environment inside the checkout, made once for each pyproject.toml.

# Installs the checkout in editable form; $1 names the extras ("" or "dev").
ensure_venv() {
    local extras="$1" wanted
    wanted="$(pwd) $(cksum < pyproject.toml)"
    # The development environment holds all that the plain one has.
    local stamp
    for stamp in dev "${extras:-plain}"; do
        if [ "$(cat ".venv/stamp-$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
    done
    local python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "error: $python is $("$python" -V 2>&1); dsv41c needs Python 3.11 or newer: name one with PYTHON=..." >&2
        exit 1
    fi
    echo "setting up .venv (a minute; once)"
    if [ ! -x .venv/bin/python ] || [ "$(cat .venv/place 2>/dev/null)" != "$(pwd)" ]; then
        "$python" -m venv --clear .venv
        pwd > .venv/place
    fi
    .venv/bin/python -m pip install -qq --disable-pip-version-check -e ".${extras:+[$extras]}"
    echo "$wanted" > ".venv/stamp-${extras:-plain}"
}

# Keeps compiled kernels in the checkout where the home folder cannot be written.
ensure_kernel_cache() {
    local default="${HOME:-/nonexistent}/.cache/dsv41c"
    if [ -z "${DSV41C_CACHE:-}" ] && ! { mkdir -p "$default" && [ -w "$default" ]; } 2>/dev/null; then
        export DSV41C_CACHE="$PWD/.venv/kernels"
    fi
}
