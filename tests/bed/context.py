"""What an image is built from, as a hash: an unchanged tree then needs neither build nor push.

Reads as much of a Dockerfile as that takes: its stages, which of them a target needs, and what those
copy from the build context.
"""

import fnmatch
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from .shell import BedError

NEVER = ("__pycache__", "*.pyc", ".git")


@dataclass
class Stage:
    """One FROM of a Dockerfile."""

    base: str
    name: str
    sources: list[str] = field(default_factory=list)  # copied from the context
    needs: list[str] = field(default_factory=list)  # other stages copied from


def _instructions(text: str) -> list[list[str]]:
    joined = re.sub(r"\\\s*\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", text))
    return [line.split() for line in joined.splitlines() if line.strip()]


def _copy(stage: Stage, words: list[str]) -> None:
    flags = [word for word in words if word.startswith("--")]
    paths = [word for word in words if not word.startswith("--")]
    other = [flag.partition("=")[2] for flag in flags if flag.startswith("--from=")]
    if other:
        stage.needs += other
    else:
        stage.sources += paths[:-1]


def _expand(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: arguments.get(match[1], match[0]), text)


def parse(text: str) -> dict[str, Stage]:
    """Return a Dockerfile's stages by name (a stage without one by its number)."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    current: Stage | None = None
    for keyword, *words in _instructions(text):
        match keyword.upper():
            case "ARG" if current is None and "=" in words[0]:
                key, _, value = words[0].partition("=")
                arguments[key] = value
            case "FROM":
                named = len(words) >= 3 and words[1].upper() == "AS"
                name = words[2] if named else str(len(stages))
                current = stages[name] = Stage(_expand(words[0], arguments), name)
            case "COPY" | "ADD" if current is not None:
                _copy(current, words)
    return stages


def needed(stages: dict[str, Stage], target: str) -> list[Stage]:
    """Return the stages that a target is built from."""
    if target not in stages:
        raise BedError(f"the Dockerfile has no target {target}; it has: {', '.join(stages)}")
    found: dict[str, Stage] = {}
    queue = [target]
    while queue:
        name = queue.pop()
        if name in stages and name not in found:
            stage = found[name] = stages[name]
            queue += [stage.base, *stage.needs]
    return list(found.values())


def bases(stages: dict[str, Stage]) -> list[str]:
    """Return the images that the stages start from."""
    return sorted({stage.base for stage in stages.values()} - {*stages, "scratch"})


def _ignored(context: Path) -> list[str]:
    listed = context / ".dockerignore"
    lines = listed.read_text().splitlines() if listed.exists() else []
    return [line.strip().strip("/") for line in lines if line.strip() and line[0] not in "#!"]


def _is_ignored(path: str, patterns: list[str]) -> bool:
    parts = path.split("/")
    if any(fnmatch.fnmatch(part, never) for part in parts for never in NEVER):
        return True
    heads = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    return any(
        fnmatch.fnmatch(head, pattern) or fnmatch.fnmatch(head, pattern.removeprefix("**/"))
        for head in heads
        for pattern in patterns
    )


def _files(context: Path, source: str) -> list[Path]:
    found: list[Path] = []
    for path in sorted(context.glob(source.strip("/").removeprefix("./") or "*")):
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not found:
        raise BedError(f"the Dockerfile copies {source}, which is not in {context}")
    return found


def fingerprint(dockerfile: Path, context: Path, target: str, salt: str) -> str:
    """Return a hash of all that decides the image: Dockerfile, copied files and `salt`."""
    text = dockerfile.read_text()
    patterns = _ignored(context)
    digest = hashlib.sha256(f"{target}\0{salt}\0{text}".encode())
    sources = {s for stage in needed(parse(text), target) for s in stage.sources}
    for source in sorted(sources):
        for path in _files(context, source):
            name = path.relative_to(context).as_posix()
            if not _is_ignored(name, patterns):
                mode = path.stat().st_mode & 0o111
                digest.update(f"{name}\0{mode}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
