"""What the bed reads from a Dockerfile, and what makes it build an image again."""

import sys
from pathlib import Path

import pytest

# The bed is run from its folder, not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bed import context, dockerfile
from bed.shell import BedError

TEXT = r"""
ARG BASE=python:slim
# FROM a comment
FROM ${BASE} AS base
FROM base AS tool
COPY pins/tool.txt /pins/
FROM tool AS wheel
COPY --chown=1:1 code/ other.txt /src/
FROM base AS dependencies
COPY pins/run.txt /pins/
RUN --mount=type=bind,from=tool,source=/opt,target=/opt \
    --mount=type=cache,target=/root/.cache \
    install -r /pins/run.txt
FROM dependencies AS final
RUN --mount=type=bind,from=wheel,target=/w install /w
COPY --from=tool /licence /
FROM base AS unrelated
COPY secrets /
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build context that TEXT can be built from."""
    for name in ("pins/tool.txt", "pins/run.txt", "code/a.py", "other.txt", "secrets"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def tag(folder: Path, target: str = "final") -> str:
    return context.fingerprint(dockerfile.parse(TEXT), target, folder, "salt")


def test_a_target_needs_what_it_starts_from_copies_and_mounts() -> None:
    needed = dockerfile.needed(dockerfile.parse(TEXT), "final")
    assert {stage.name for stage in needed} == {"final", "dependencies", "base", "wheel", "tool"}
    assert dockerfile.bases(needed) == ["python:slim"]


def test_mounted_stages_come_in_order_of_building() -> None:
    stages = dockerfile.parse(TEXT)
    assert sorted(dockerfile.mounted(stages, "final")) == ["tool", "wheel"]
    assert dockerfile.mounted(stages, "dependencies") == ["tool"]


def test_only_mounts_of_stages_are_replaced() -> None:
    pinned = dockerfile.pin_mounts(TEXT, lambda stage: f"images/{stage}:1")
    assert "--mount=type=bind,from=images/tool:1,source=/opt" in pinned
    assert "--mount=type=bind,from=images/wheel:1,target=/w" in pinned
    assert "COPY --from=tool /licence /" in pinned
    assert "--mount=type=cache,target=/root/.cache" in pinned


@pytest.mark.parametrize("name", ["code/a.py", "pins/run.txt", "pins/tool.txt", "other.txt"])
def test_a_change_of_what_goes_in_changes_the_tag(folder: Path, name: str) -> None:
    before = tag(folder)
    (folder / name).write_text("changed")
    assert tag(folder) != before


def test_other_files_do_not_change_the_tag(folder: Path) -> None:
    before = tag(folder)
    (folder / "secrets").write_text("changed")
    (folder / "code/__pycache__").mkdir()
    (folder / "code/__pycache__/a.pyc").write_text("compiled")
    assert tag(folder) == before


def test_code_does_not_change_the_dependencies(folder: Path) -> None:
    before = tag(folder, "dependencies")
    (folder / "code/a.py").write_text("changed")
    assert tag(folder, "dependencies") == before


def test_dockerignore_with_exceptions(folder: Path) -> None:
    (folder / ".dockerignore").write_text("*\n!code/\n!other.txt\n!pins/\n**/*.log\n")
    before = tag(folder)
    (folder / "code/run.log").write_text("ignored")
    assert tag(folder) == before
    (folder / "code/a.py").write_text("changed")
    assert tag(folder) != before


def test_an_unknown_target_is_named(folder: Path) -> None:
    with pytest.raises(BedError, match="no target nosuch; it has: base, tool"):
        tag(folder, "nosuch")


def test_a_missing_source_is_named(folder: Path) -> None:
    (folder / "other.txt").unlink()
    with pytest.raises(BedError, match=r"copies other\.txt, which is not in"):
        tag(folder)
