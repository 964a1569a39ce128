#!/usr/bin/env bash
# The trainer's tests. Those that run Megatron FSDP fill the cores with their ranks, and go one after
# another; the others mostly wait, and go side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
alone=(tests/trainer/{megatron,optim,plan} tests/trainer/test_{combinations,performance}.py)
.venv/bin/python -m pytest -q "${alone[@]}"
.venv/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile tests/trainer "${alone[@]/#/--ignore=}"
