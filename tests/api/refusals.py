"""Reads refusals.yaml: the table of what the API refuses, for online and offline tests."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_TABLE = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Case:
    """One refusal: the manifest, its accepted neighbour, and what the answer must hold."""

    refused: dict[str, Any]
    accepted: dict[str, Any]
    field: str
    says: str
    offline: str

    @property
    def id(self) -> str:
        """A name for the test: what was set."""
        return ",".join(f"{path}={value}" for path, value in self.refused.items())[:80]

    def manifest(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The base job with changes by dotted path; None removes."""
        result = base()
        for path, value in changes.items():
            put(result, path, value)
        return result


def base() -> dict[str, Any]:
    """A job that is accepted."""
    return copy.deepcopy(_TABLE["base"])


def put(manifest: dict[str, Any], path: str, value: object) -> None:
    """Set a dotted path; None removes it."""
    *parents, leaf = path.split(".")
    for parent in parents:
        manifest = manifest.setdefault(parent, {})
    if value is None:
        manifest.pop(leaf, None)
    else:
        manifest[leaf] = copy.deepcopy(value)


CASES = [
    Case(
        entry["refused"],
        entry["accepted"],
        entry["field"],
        entry["says"],
        entry.get("offline", entry["says"]),
    )
    for entry in _TABLE["cases"]
]
