"""The directory of checkpoints: names, publication, retention. For rank 0; no torch here.

<checkpoint.path>/step-00000200/    a complete checkpoint: it got its name when it was durable
<checkpoint.path>/.saving-.../      one that is being written, or was torn
<checkpoint.path>/latest            the name of the newest complete one, for people and scripts
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mfsdp_trainer.contract import Env
from mfsdp_trainer.errors import CheckpointError
from mfsdp_trainer.files import publish_directory, remove, write_durably

from .manifest import MANIFEST, Manifest

LATEST: Final = "latest"
_NAME: Final = re.compile(r"step-(\d{8,})")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one line for a person."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(why(path, error)) from error


def why(path: Path, error: OSError) -> str:
    """What a person has to know of an error while a checkpoint was written."""
    return (
        f"checkpoint.path: cannot write {error.filename or path}: {error.strerror or error}: give "
        "it a volume with room that the trainer's user may write"
    )


def attempt() -> str:
    """The attempt of the job that this process belongs to."""
    return os.environ.get(Env.ATTEMPT) or "0"


def job() -> str:
    """The job that this process belongs to; empty for a run by hand."""
    return os.environ.get(Env.JOB_UID) or ""


def complete(root: Path) -> list[Path]:
    """The complete checkpoints, newest first."""
    if not root.is_dir():
        return []
    found = [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name) and entry.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def step_of(directory: Path) -> int:
    """The step that a checkpoint's name tells."""
    match = _NAME.fullmatch(directory.name)
    assert match is not None
    return int(match.group(1))


def begin(root: Path, step: int) -> Path:
    """A new directory to write the checkpoint of a step into; torn ones are removed."""
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        for torn in root.glob(".saving-*"):
            remove(torn)
        scratch = root / f".saving-step-{step:08d}-attempt-{attempt()}"
        scratch.mkdir()
    return scratch


def publish(scratch: Path, manifest: Manifest, *, keep: int) -> Path:
    """Give a written checkpoint its name, point `latest` to it, and remove all but the newest.

    Raises CheckpointError; nothing is published then.
    """
    root = scratch.parent
    missing = [name for name in manifest.files if not (scratch / name).is_file()]
    if missing:
        raise CheckpointError(
            f"checkpoint.path {root}: {missing[0]} of another node is not here: it must be one "
            "directory that all nodes share (a ReadWriteMany volume)"
        )
    target = root / f"step-{manifest.position.step:08d}"
    with explained(root):
        (scratch / MANIFEST).write_text(manifest.model_dump_json(by_alias=True), encoding="utf-8")
        publish_directory(scratch, target)
        write_durably(root / LATEST, f"{target.name}\n")
        _retain(root, target, keep)
    return target


def _retain(root: Path, newest: Path, keep: int) -> None:
    """Remove old checkpoints, never the one just published.

    Ones with a higher step are of a run that was started over: they would be resumed from.
    """
    others = [directory for directory in complete(root) if directory != newest]
    ahead = [directory for directory in others if step_of(directory) > step_of(newest)]
    behind = [directory for directory in others if step_of(directory) < step_of(newest)]
    for directory in [*ahead, *behind[keep - 1 :]]:
        shutil.rmtree(directory)
