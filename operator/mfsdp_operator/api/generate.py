"""Writes what is generated from the API types: `python -m mfsdp_operator.api.generate [--check]`.

Runs in a checkout (`make generate`). With --check it writes nothing and fails where a file differs
from what would be written; CI runs that.
"""

import argparse
import sys
from pathlib import Path

import yaml

from . import names
from .crd import crd
from .reference import reference

_HEADER = "# Generated from operator/mfsdp_operator/api by `make generate`. Do not edit.\n"


def outputs() -> dict[str, str]:
    """Path in the repository -> content, for every generated file."""
    manifest = crd()
    text = _HEADER + yaml.safe_dump(manifest, sort_keys=False, width=100, allow_unicode=True)
    return {
        f"crds/{names.GROUP}_{names.PLURAL}.yaml": text,
        # Helm reads no file outside a chart.
        "charts/mfsdp-operator/files/crd.yaml": text,
        "docs/reference/api.md": reference(manifest),
    }


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the files generated from the API types.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    return generate(Path(__file__).resolve().parents[3], check=parser.parse_args(argv).check)


def generate(root: Path, *, check: bool) -> int:
    """Write what differs below `root`, or only say so; the exit code."""
    stale = {path: text for path, text in outputs().items() if not _is(root / path, text)}
    for path, text in stale.items():
        if check:
            sys.stderr.write(f"{path} is not what the API types say: run `make generate`\n")
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if check and stale else 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
