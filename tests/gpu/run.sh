#!/usr/bin/env bash
# What docs/gpu-checklist.md asks of a GPU and a machine can answer by itself, in one go: the
# equality of all engines under NCCL, the options that need a GPU, memory, tokens/s. Uses as many of
# this machine's GPUs as a test has ranks (1, 2 or 4) and skips what needs more.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
suites=(
    tests/gpu
    tests/trainer/test_equality.py
    tests/trainer/test_performance.py
    tests/trainer/megatron/test_equality.py
)
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no GPU here: skipped. What would run:"
    exec "$python" -m pytest -q -m "" --collect-only "${suites[@]}"
fi
nvidia-smi
"$python" -c 'import torch; print("torch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
export MFSDP_TEST_DEVICE=cuda
exec "$python" -m pytest -s -m "" "${suites[@]}" "$@"
