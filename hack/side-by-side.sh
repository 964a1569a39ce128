#!/usr/bin/env bash
# Tests that mostly wait, or compute with few threads: files of them go side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile "$@"
