#!/usr/bin/env bash
# `make test`: every test, the quick ones first. Sets up all that they need: the cluster is built
# from source into the cache the first time (about 10 minutes on two cores), the images too.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS

step() {
    printf '\n\033[1m== %s (%d min %02d s so far)\033[0m\n' "$1" \
        $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60))
}

step "lint"
hack/lint.sh
step "unit tests"
hack/side-by-side.sh tests/unit
step "embedded cluster"
python3 tests/bed up
step "images"
python3 tests/bed images
step "API tests"
.venv/bin/python -m pytest -q tests/api
step "cluster tests"
.venv/bin/python -m pytest -q tests/cluster
step "trainer tests"
hack/side-by-side.sh tests/trainer
step "done"
