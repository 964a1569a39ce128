"""Saving and resuming a run: what the loop sees of checkpoints.

A save copies the state, which is all that the loop waits for, and goes on in the background on a
process group of its own: files, checksums, publication, removal of old ones. One runs at a time.
"""

import dataclasses
import logging
from typing import Any, Final

import torch

from mfsdp_trainer.config import CheckpointConfig
from mfsdp_trainer.config.checkpoint import ResumePolicy
from mfsdp_trainer.engines import Engine
from mfsdp_trainer.errors import CheckpointError, ConfigError, TrainerError
from mfsdp_trainer.world import World

from .background import Background
from .identity import ORDER, require_same, require_same_state
from .manifest import Identity, Manifest, Position, attempt, job
from .reading import restore
from .retention import best_first, redundant
from .staging import Staging
from .store import BEST, LATEST, Store
from .transfer import write

_log = logging.getLogger(__name__)
_FIELD: Final = "checkpoint.path"


class Checkpoints:
    """The checkpoints of one run. Its methods are collectives, but for `poll`."""

    def __init__(
        self, config: CheckpointConfig, store: Store, world: World, identity: Identity
    ) -> None:
        self._config = config
        self._store = store
        self._world = world
        # The training's agreements and those of a save must not meet on one group.
        self._beside = dataclasses.replace(world, control=world.storage)
        self.identity = identity
        """What checkpoints of this run go with."""
        self._staging = Staging(world.device)
        self._background = Background()
        self._saving: int | None = None
        self._published: int | None = None
        self._damaged: set[str] = set()

    def begin(self, engine: Engine, position: Position, eval_loss: float | None = None) -> None:
        """Copy the state between two steps, and save the copy while the training goes on.

        Waits for a save that still runs, and says so. Raises what ended that one.
        """
        if self._background.busy and self._world.is_first:
            _log.warning(
                "step %d: waits for the checkpoint of step %s, which is still being written: "
                "raise checkpoint.everySteps if this happens again",
                position.step,
                self._saving,
            )
        self.finish()
        self._saving = position.step
        if not self._config.asynchronous:
            self._save(engine.state(), position, eval_loss)
            return
        state = self._staging.copy(engine.state())
        self._background.start(lambda: self._save(state, position, eval_loss))

    def finish(self) -> None:
        """Wait for the save that runs, if one does. Raises what ended it, on every rank alike.

        Of a save that failed nothing is published; what was before stays.
        """
        self._background.finish()

    def settle(self) -> None:
        """Wait for a save as the run ends on an error, which is told rather than the save's."""
        try:
            self.finish()
        except TrainerError as error:
            _log.warning("the last checkpoint was not published either: %s", error)

    @property
    def failed(self) -> bool:
        """Whether a save failed on this rank: sum it over all ranks, then call `finish`."""
        return self._background.failed

    @property
    def busy(self) -> bool:
        """Whether a save runs in the background of this rank."""
        return self._background.busy

    def poll(self) -> int | None:
        """The step of a checkpoint that was published since the last call."""
        step, self._published = self._published, None
        return step

    def _save(self, state: dict[str, Any], position: Position, eval_loss: float | None) -> None:
        world, store = self._beside, self._store
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)  # of this thread
        scratch = world.from_first(lambda: store.begin(position.step))
        manifest = Manifest(
            position=position,
            identity=self.identity,
            world_size=world.size,
            attempt=attempt(),
            job=job(),
            eval_loss=eval_loss,
            files=write(state, store.writer(scratch), world, store.place),
        )
        world.from_first(lambda: self._publish(scratch, manifest))
        self._published = position.step

    def _publish(self, scratch: str, manifest: Manifest) -> None:
        store = self._store
        newest = store.publish(scratch, manifest)
        self._damaged.discard(newest)
        store.point(LATEST, newest)
        known = {name: store.manifest(name) for name in store.complete()}
        losses = {name: facts.eval_loss if facts else None for name, facts in known.items()}
        extra = redundant(
            losses,
            newest,
            keep=self._config.keep,
            keep_best=self._config.keep_best,
            damaged=frozenset(self._damaged),
        )
        best = best_first({name: loss for name, loss in losses.items() if name not in extra})
        store.point(BEST, best[0] if best else None)
        for name in extra:
            store.remove(name)

    def resume(self, engine: Engine) -> Position | None:
        """Load the newest checkpoint that is whole; None if there is none at all.

        A damaged one is skipped with a warning. Raises ConfigError for checkpoints that this run
        must not go on from, CheckpointError if none of several can be read.
        """
        found = self._world.from_first(self._store.complete)
        if found and self._config.resume is ResumePolicy.NEVER and not self._own(found[0]):
            raise ConfigError(
                f"checkpoint.resume is never, but {self._store.place} holds {found[0]}: choose an "
                "empty checkpoint.path, or resume: auto"
            )
        for name in found:
            position = self._try(name, engine)
            if position is not None:
                return position
        if found:
            raise CheckpointError(
                f"checkpoint.path {self._store.place}: none of its {len(found)} checkpoints can be "
                "read: restore one, or choose an empty path to start over"
            )
        return None

    def _own(self, newest: str) -> bool:
        """Whether an earlier attempt of this very job wrote it: that is no start over."""
        manifest = self._world.from_first(lambda: self._store.manifest(newest))
        return manifest is not None and manifest.job != "" and manifest.job == job()

    def _try(self, name: str, engine: Engine) -> Position | None:
        """Load a checkpoint, or say why not."""
        where = f"{self._store.place}/{name}"
        manifest = self._world.from_first(lambda: self._store.manifest(name))
        if manifest is None:
            self._skip(name, "checkpoint.json is missing, unreadable or of another version")
            return None
        require_same(manifest.identity, self.identity, where, _FIELD)
        require_same_state(manifest.identity, self.identity, where)
        harm = restore(engine.state(), self._store, name, manifest, self._world)
        if harm is not None:
            self._skip(name, harm)
            return None
        if manifest.identity.order != self.identity.order and self._world.is_first:
            _log.warning(ORDER, where)
        engine.restored()
        return manifest.position

    def _skip(self, name: str, harm: str) -> None:
        self._damaged.add(name)
        if self._world.is_first:
            _log.warning(
                "checkpoint %s/%s is damaged and skipped: %s", self._store.place, name, harm
            )
