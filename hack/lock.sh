#!/usr/bin/env bash
# Pin every dependency with its hashes (`make lock`). The files name no package index: pip and uv
# take whichever the machine is set up for. One resolution (dev.txt) constrains the others, so that
# tests, images and tools run the same versions.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    out=$1; shift
    "${UV:?}" pip compile --quiet --universal --python-version 3.12 --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links --no-annotate "$@" \
        --output-file "requirements/$out"
}

compile dev.txt pyproject.toml --extra operator --extra trainer --extra wandb --extra mlflow --group dev --group build
for extra in operator trainer; do
    compile "$extra.txt" pyproject.toml --extra "$extra" --constraints requirements/dev.txt
done
compile build.txt --group build --constraints requirements/dev.txt
compile s3.txt requirements/s3.in
echo "locked: $(grep -hc '==' requirements/dev.txt) packages"
