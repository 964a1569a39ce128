"""As much of a Dockerfile as the bed must understand: its stages and what goes into each.

Needed twice: to tell whether an image must be built at all, and to help an old buildah with ``RUN
--mount=from=STAGE``. Debian 12's 1.28 takes such a step from its cache although the stage has
changed, and finds the stage empty when that came from the cache. Both are gone when the stage is
built first, as an image with a name of its own, and the step mounts that image.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .shell import BedError


@dataclass
class Stage:
    """One FROM of a Dockerfile."""

    base: str
    name: str
    text: list[str] = field(default_factory=list)  # its instructions
    sources: list[str] = field(default_factory=list)  # what comes from the build context
    needs: list[str] = field(default_factory=list)  # other stages that it takes from
    mounts: list[str] = field(default_factory=list)  # those of them that a RUN mounts


def instructions(text: str) -> list[str]:
    """Return the instructions, continuation lines joined and comments left out."""
    plain = re.sub(r"(?m)^\s*#.*\n?", "", text)
    joined = re.sub(r"\\\s*\n", " ", plain)
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _copy(stage: Stage, words: list[str]) -> None:
    flags = [word for word in words if word.startswith("--")]
    paths = [word for word in words if not word.startswith("--")]
    other = [flag.partition("=")[2] for flag in flags if flag.startswith("--from=")]
    if other:
        stage.needs += other
    else:
        stage.sources += paths[:-1]


def _mounts(words: list[str]) -> list[dict[str, str]]:
    options = [word.removeprefix("--mount=") for word in words if word.startswith("--mount=")]
    return [dict(o.split("=", 1) for o in option.split(",") if "=" in o) for option in options]


def _run(stage: Stage, words: list[str]) -> None:
    for mount in _mounts(words):
        if "from" in mount:
            stage.needs.append(mount["from"])
            stage.mounts.append(mount["from"])
        elif mount.get("type", "bind") == "bind":
            stage.sources.append(mount.get("source", mount.get("src", ".")))


def _expand(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: arguments.get(match[1], match[0]), text)


def parse(text: str) -> dict[str, Stage]:
    """Return the stages by name (a stage without one by its number)."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    current: Stage | None = None
    for line in instructions(text):
        keyword, *words = line.split()
        match keyword.upper():
            case "ARG" if current is None and "=" in words[0]:
                key, _, value = words[0].partition("=")
                arguments[key] = value
            case "FROM":
                named = len(words) >= 3 and words[1].upper() == "AS"
                name = words[2] if named else str(len(stages))
                current = stages[name] = Stage(_expand(words[0], arguments), name)
            case "RUN" if current is not None:
                _run(current, words)
            case "COPY" | "ADD" if current is not None:
                _copy(current, words)
        if current is not None:
            current.text.append(line)
    return stages


def needed(stages: dict[str, Stage], target: str) -> list[Stage]:
    """Return the stages that a target is built from, itself included."""
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


def bases(stages: list[Stage]) -> list[str]:
    """Return the images that stages start from."""
    return sorted({stage.base for stage in stages} - {s.name for s in stages} - {"scratch"})


def mounted(stages: dict[str, Stage], target: str) -> list[str]:
    """Return the stages that must be images before a target can be built, in order of building."""
    order: list[str] = []
    for stage in needed(stages, target):
        for name in stage.mounts:
            if name in stages:
                order += [n for n in (*mounted(stages, name), name) if n not in order]
    return order


def pin_mounts(text: str, image: Callable[[str], str]) -> str:
    """Return the Dockerfile with `image(STAGE)` in place of each stage that a RUN mounts."""
    stages = parse(text)

    def pinned(match: re.Match[str]) -> str:
        return f"from={image(match[1])}" if match[1] in stages else match[0]

    blocks = re.split(r"(?mi)^(?=\s*(?:ARG|FROM|RUN|COPY|ADD|ENV|USER|ENTRYPOINT|CMD)\b)", text)
    for i, block in enumerate(blocks):
        if block.lstrip().upper().startswith("RUN"):
            blocks[i] = re.sub(r"(?<=[=,])from=([\w.-]+)", pinned, block)
    return "".join(blocks)
