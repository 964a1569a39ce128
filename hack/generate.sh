#!/usr/bin/env bash
# Write everything that is generated from the typed models (`make generate`); with --check, write
# nothing and fail on a difference.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m mfsdp_operator.api.generate "$@"
