#!/usr/bin/env bash
# Make .venv with the pinned development environment (`make venv`; every target that needs it calls
# this). Needs nothing but a Python >= 3.12 with venv; says how to get one where there is none. uv
# itself comes pinned from requirements/uv.txt into the cache, wheels are shared by all checkouts.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/mfsdp
inputs=(requirements/dev.txt requirements/uv.txt requirements/s3.txt pyproject.toml hack/venv.sh)
stamp=.venv/.stamp-$(cat "${inputs[@]}" | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

is_new_enough() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.13 python3.12 python3.14 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1{3,2,4}.*/bin/python3; do
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if ! python=$(find_python); then
    echo "venv: no Python >= 3.12 with the venv module found (tried \$PYTHON, python3.12 to 3.14," \
        "python3, pyenv). Install one, e.g. 'apt-get install python3.13-venv', 'pyenv install 3.13'" \
        "or 'uv python install 3.13', or point PYTHON at it." >&2
    exit 1
fi

uv_home=$cache/uv-$(sha256sum requirements/uv.txt | cut -c1-16)
if [ ! -x "$uv_home/bin/uv" ]; then
    echo "venv: installing uv (once a machine)"
    fresh=$(mktemp -d "$(mkdir -p "$cache" && echo "$cache")/uv-new-XXXXXX")
    "$python" -m venv "$fresh"
    "$fresh/bin/python" -m pip install --quiet --require-hashes -r requirements/uv.txt
    mv -T "$fresh" "$uv_home" 2>/dev/null || rm -rf "$fresh" # another checkout was first: fine
fi
uv=$uv_home/bin/uv
export UV_SYSTEM_CERTS=true # a company's own CA, where pip trusts it, is trusted here too

echo "venv: installing the pinned environment with $("$python" --version) (torch alone is 3 GB the first time)"
rm -rf .venv
"$uv" venv --quiet --python "$python" .venv
# Compiled here, once: where PYTHONDONTWRITEBYTECODE is set every process would compile torch again, for
# six seconds.
"$uv" pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes requirements/dev.txt
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
ln -s "$uv" .venv/bin/uv

# The S3-like server of the tests, once a machine; tests/trainer/s3.py finds it by the same name.
s3_home=$cache/s3-$(sha256sum requirements/s3.txt | cut -c1-16)
if [ ! -x "$s3_home/bin/python" ]; then
    fresh=$(mktemp -d "$cache/s3-new-XXXXXX")
    "$uv" venv --quiet --clear --python "$python" "$fresh"
    "$uv" pip sync --quiet --python "$fresh/bin/python" --require-hashes requirements/s3.txt
    mv -T "$fresh" "$s3_home" 2>/dev/null || rm -rf "$fresh"
fi
touch "$stamp"
