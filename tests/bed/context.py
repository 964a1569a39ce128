"""What an image is built from, as a hash: an unchanged tree then needs neither build nor push."""

import fnmatch
import hashlib
from pathlib import Path

from .dockerfile import Stage, needed
from .shell import BedError

NEVER = ("__pycache__", "*.pyc", ".git")


def _ignored(context: Path) -> list[str]:
    listed = context / ".dockerignore"
    lines = listed.read_text().splitlines() if listed.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _is_ignored(path: str, patterns: list[str]) -> bool:
    """Apply .dockerignore's rules: the last pattern that matches the path or a parent decides."""
    parts = path.split("/")
    if any(fnmatch.fnmatch(part, never) for part in parts for never in NEVER):
        return True
    heads = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    ignored = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").strip("/")
        forms = {plain, plain.removeprefix("**/")}
        if any(fnmatch.fnmatch(head, form) for head in heads for form in forms):
            ignored = not pattern.startswith("!")
    return ignored


def _files(context: Path, source: str) -> list[Path]:
    pattern = source.strip("/").removeprefix("./")
    found: list[Path] = []
    for path in sorted(context.glob("*" if pattern in {"", "."} else pattern)):
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not found:
        raise BedError(f"the Dockerfile copies {source}, which is not in {context}")
    return found


def fingerprint(stages: dict[str, Stage], target: str, context: Path, salt: str) -> str:
    """Return a hash of all that decides a stage: instructions, copied files and `salt`."""
    digest = hashlib.sha256(f"{target}\0{salt}\0".encode())
    patterns = _ignored(context)
    chain = sorted(needed(stages, target), key=lambda stage: stage.name)
    for stage in chain:
        digest.update("\n".join([stage.base, *stage.text]).encode())
    for source in sorted({source for stage in chain for source in stage.sources}):
        for path in _files(context, source):
            name = path.relative_to(context).as_posix()
            if not _is_ignored(name, patterns):
                executable = path.stat().st_mode & 0o111
                digest.update(f"{name}\0{executable}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
