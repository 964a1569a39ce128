"""Saving and resuming a run with torch.distributed.checkpoint, on a process group of its own."""

import logging
import warnings
from pathlib import Path
from typing import Any, Final

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from mfsdp_trainer.config import CheckpointConfig
from mfsdp_trainer.config.checkpoint import ResumePolicy
from mfsdp_trainer.engines import Engine
from mfsdp_trainer.errors import CheckpointError, ConfigError
from mfsdp_trainer.world import World

from . import directory
from .manifest import FileSum, Identity, Manifest, Position, damage, read_manifest, sum_file

_METADATA: Final = ".metadata"

_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run. All methods are collectives."""

    def __init__(self, config: CheckpointConfig, world: World, identity: Identity) -> None:
        self._root = Path(config.path)
        self._config = config
        self._world = world
        self._identity = identity

    def save(self, engine: Engine, position: Position) -> None:
        """Write and publish the state between two steps.

        Raises CheckpointError on every rank where any of them cannot write; what was published
        before stays.
        """
        scratch = self._world.from_first(lambda: directory.begin(self._root, position.step))
        _write(engine.state(), scratch, self._world)
        sums = self._world.together(lambda: self._own_sums(scratch))
        files = {name: file for part in self._world.gather(sums) for name, file in part.items()}
        manifest = Manifest(
            position=position,
            identity=self._identity,
            world_size=self._world.size,
            attempt=directory.attempt(),
            job=directory.job(),
            files=files,
        )
        keep = self._config.keep
        self._world.from_first(lambda: directory.publish(scratch, manifest, keep=keep))

    def _own_sums(self, scratch: Path) -> dict[str, FileSum]:
        """Checksums of what this rank wrote, while it is still in the page cache."""
        own = sorted(scratch.glob(f"__{self._world.rank}_*"))
        if self._world.is_first:
            own.append(scratch / _METADATA)
        with directory.explained(scratch):
            return {file.name: sum_file(file) for file in own}

    def resume(self, engine: Engine) -> Position | None:
        """Load the newest checkpoint that is whole; None if there is none at all.

        A damaged one is skipped with a warning. Raises ConfigError for checkpoints that this run
        must not go on from, CheckpointError if none of several can be read.
        """
        found = self._world.from_first(lambda: directory.complete(self._root))
        if found and self._config.resume is ResumePolicy.NEVER and not self._own(found[0]):
            raise ConfigError(
                f"checkpoint.resume is never, but {self._root} holds {found[0].name}: choose an "
                "empty checkpoint.path, or resume: auto"
            )
        for candidate in found:
            position = self._try(candidate, engine)
            if position is not None:
                return position
        if found:
            raise CheckpointError(
                f"checkpoint.path {self._root}: none of its {len(found)} checkpoints can be read: "
                "restore one, or choose an empty path to start over"
            )
        return None

    def _own(self, newest: Path) -> bool:
        """Whether an earlier attempt of this very job wrote it: that is no start over."""
        manifest = self._world.from_first(lambda: read_manifest(newest))
        return manifest is not None and manifest.job != "" and manifest.job == directory.job()

    def _try(self, candidate: Path, engine: Engine) -> Position | None:
        """Load a checkpoint, or say why not."""
        manifest = self._world.from_first(lambda: read_manifest(candidate))
        if manifest is None:
            self._skip(candidate, "checkpoint.json is missing, unreadable or of another version")
            return None
        self._require_same(manifest, candidate)
        reports = self._world.gather(
            damage(candidate, manifest, part=self._world.rank, parts=self._world.size)
        )
        harm = next((report for report in reports if report is not None), None)
        harm = harm or _read(engine.state(), candidate, self._world)
        if harm is not None:
            self._skip(candidate, harm)
            return None
        engine.restored()
        return manifest.position

    def _skip(self, candidate: Path, harm: str) -> None:
        if self._world.is_first:
            _log.warning("checkpoint %s is damaged and skipped: %s", candidate, harm)

    def _require_same(self, manifest: Manifest, candidate: Path) -> None:
        saved, ours = manifest.identity, self._identity
        if saved.parameters != ours.parameters:
            raise ConfigError(
                f"checkpoint.path: {candidate} is of a model with other parameters: choose another "
                "path, or the model it was trained with"
            )
        if saved.architecture and saved.architecture != ours.architecture:
            raise ConfigError(
                f"checkpoint.path: {candidate} is of a model with the same parameters but other "
                "heads, experts or activation: choose another path, or the model it was trained "
                "with"
            )
        if saved.tokenizer != ours.tokenizer:
            raise ConfigError(
                f"checkpoint.path: {candidate} was trained with another tokenizer: choose another "
                "path, or the data.tokenizer it was trained with"
            )
        if saved.order != ours.order and self._world.is_first:
            _log.warning(
                "%s was trained on other data, seed or sequence length: the data goes on from the "
                "same position of a new order",
                candidate,
            )


class _Writer(FileSystemWriter):
    """Lets the file system's own error out.

    A full disk reaches a person as `unexpected pos 704 vs 598` otherwise: torch's archive writer
    puts its own complaint over it, and what travels between ranks has lost what it came from.
    """

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise (_file_error(error) or error) from error


def _file_error(error: BaseException) -> OSError | None:
    """The OSError that an exception came from."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        link = link.__cause__ or link.__context__
    return link


def _write(state: dict[str, Any], scratch: Path, world: World) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            writer = _Writer(scratch)
            save(state, storage_writer=writer, process_group=world.storage)
    except CheckpointException as error:
        raise CheckpointError(_cause(scratch.parent, error)) from error


def _read(state: dict[str, Any], candidate: Path, world: World) -> str | None:
    """Load into the state in place; what went wrong, the same on every rank, or None."""
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            reader = FileSystemReader(candidate)
            load(state, storage_reader=reader, process_group=world.storage)
    except CheckpointException as error:
        return _cause(candidate, error)
    return None


def _cause(root: Path, error: CheckpointException) -> str:
    """The first failure, of the lowest rank that had one."""
    rank, (cause, _) = min(error.failures.items())
    if isinstance(cause, OSError):
        return directory.why(root, cause)
    first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return f"checkpoint.path {root}: rank {rank}: {first}"
