#!/usr/bin/env bash
# Everything that is checked without running the product (`make lint`). All checks run, then it
# fails if any did, so that one run shows every finding.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

check() {
    local name=$1; shift
    "$@" || failed+=("$name")
}

check "ruff check" .venv/bin/ruff check .
check "ruff format (run: .venv/bin/ruff format .)" .venv/bin/ruff format --check --quiet .
check mypy .venv/bin/mypy
check "mypy of the bed" env MYPYPATH=tests .venv/bin/mypy --strict -p bed
check "import contract" .venv/bin/lint-imports --no-logo
check "generated files (run: make generate)" hack/generate.sh --check
if helm=$(command -v helm || python3 tests/bed which helm 2>/dev/null) && [ -x "$helm" ]; then
    check "helm lint" "$helm" lint --quiet --strict charts/mfsdp-operator
fi

if [ ${#failed[@]} -gt 0 ]; then
    printf 'lint: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "lint: all checks passed"
