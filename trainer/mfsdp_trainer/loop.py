"""The training loop: the story of one step, and what happens between two of them."""

import hashlib
import logging
import math
import time
from dataclasses import dataclass

import torch

from .checkpoint import Checkpoints, Position
from .config import TrainerConfig
from .contract import Phase
from .data.batches import MicroBatch, TrainingData
from .engines import Engine
from .errors import NonFiniteLossError, PreemptedError, TrainerError
from .evaluation import evaluate
from .observe.meter import Meter, StepFacts
from .observe.profiling import Profiler
from .optim import learning_rate
from .reporting import Reporter
from .world import World

_log = logging.getLogger(__name__)


@dataclass
class Loop:
    """Everything that training needs, and the training."""

    config: TrainerConfig
    world: World
    engine: Engine
    data: TrainingData
    held_out: list[MicroBatch]
    """This rank's evaluation batches; maybe none."""
    checkpoints: Checkpoints
    reporter: Reporter
    meter: Meter
    profiler: Profiler

    def run(self, start: Position) -> Position:
        """Train from a position to the last step. Collective.

        Raises NonFiniteLossError before such a step is taken, PreemptedError after a checkpoint
        that was asked for, CheckpointError.
        """
        position = start
        hang = self.config.hang
        # Ranks compile, tune and connect at their own pace, in the evaluation and the first step.
        self.world.limit_collectives(max(hang.first_step_seconds, hang.collective_seconds))
        self._evaluate(position)
        self.reporter.phase(Phase.TRAINING)
        self.meter.restart()
        try:
            while position.step < self.config.training.total_steps:
                position, stop = self.advance(position)
                if position.step == start.step + 1:
                    self.world.limit_collectives(hang.collective_seconds)
                self._between(position, stop=stop)
        except TrainerError:
            # The checkpoint that may be under way is of good steps: it is finished and published.
            self.reporter.phase(Phase.SAVING)
            self.checkpoints.settle()
            raise
        return position

    def advance(self, position: Position) -> tuple[Position, bool]:
        """One step and its report; where the run stands then, and whether it was asked to stop.

        Collective. Raises NonFiniteLossError before such a step is taken.
        """
        with self.profiler.step(position.step + 1):
            facts, stop = self._step(position)
        self.meter.count(facts)
        consumed = position.consumed + self.config.training.batch_after(position.consumed)
        return Position(step=facts.step, consumed=consumed), stop

    def _step(self, position: Position) -> tuple[StepFacts, bool]:
        """One optimizer step; what it came to, and whether any rank was asked to stop."""
        self._seed(position)
        size = self.config.training.batch_after(position.consumed)
        batches = self.data.micro_batches(position.consumed, size)
        (tokens,) = self.world.sum([sum(batch.tokens for batch in batches)])
        loss = self._forward_backward(batches, tokens)
        flags = [self.reporter.stop_requested, self.checkpoints.failed]
        loss, stop, failed = self.world.sum([loss, *flags])
        if failed:
            self.checkpoints.finish()
        norm = self.engine.clip(self.config.training.clip_grad_norm)
        _require_finite(position.step + 1, loss, norm)
        rate = learning_rate(self.config.training, position.step)
        if not tokens:
            self._warn_of_nothing(position.step + 1)
        # Without a token there is no gradient: a rate of 0 keeps the decay from acting alone.
        self.engine.step(rate if tokens else 0.0)
        return StepFacts(position.step + 1, loss, norm, rate, int(tokens)), stop > 0

    def _forward_backward(self, batches: list[MicroBatch], tokens: float) -> float:
        """Gradients of the mean loss over all tokens of the step; this rank's share of it."""
        # Engines average over ranks: the factor of the world size makes that the sum it must be.
        scale = self.world.size / max(tokens, 1)
        total = torch.zeros((), device=self.world.device)
        for number, batch in enumerate(batches, start=1):
            batch = batch.to(self.world.device)
            with self.engine.micro_batch(last=number == len(batches)):
                loss = self.engine.loss(batch, scale)
                loss.backward()
            total += loss.detach()
        return float(total) / self.world.size

    def _warn_of_nothing(self, step: int) -> None:
        if self.world.is_first:
            _log.warning(
                "step %d: no token of its sequences is one that is trained on: the weights stay as "
                "they are",
                step,
            )

    def _seed(self, position: Position) -> None:
        """Random numbers of a step (dropout) follow from seed, step and rank: none are saved."""
        text = f"{self.config.training.seed}:{position.step}:{self.world.rank}"
        digest = hashlib.sha256(text.encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little", signed=True))

    def _between(self, position: Position, *, stop: bool) -> None:
        """What is due after a step: evaluation, checkpoint, the end that was asked for."""
        training, checkpoint = self.config.training, self.config.checkpoint
        ended = position.step == training.total_steps
        save = stop or ended or _due(position.step, checkpoint.every_steps)
        look = ended or _due(position.step, training.eval_every_steps)
        look = look or (save and checkpoint.keep_best > 0)
        loss = self._evaluate(position) if look and not stop else None
        self._tell_published()
        if save:
            self._save(position, loss, last=stop or ended)
        if stop and not ended:
            raise PreemptedError(
                f"asked to stop: a checkpoint of step {position.step} is published"
            )

    def _evaluate(self, position: Position) -> float | None:
        if not self.held_out:
            return None
        self.reporter.phase(Phase.EVALUATING)
        loss = evaluate(self.engine, self.held_out, self.world)
        self.meter.evaluated(position.step, loss)
        self.reporter.phase(Phase.TRAINING)
        self.meter.restart()
        return loss

    def _save(self, position: Position, eval_loss: float | None, *, last: bool) -> None:
        """Begin a checkpoint; of the last one of a run, see the end."""
        self.reporter.phase(Phase.SAVING)
        began = time.monotonic()
        self.checkpoints.begin(self.engine, position, eval_loss)
        if last:
            self.checkpoints.finish()
        self.meter.held_up(position.step, time.monotonic() - began)
        self._tell_published()
        self.reporter.phase(Phase.TRAINING)
        self.meter.restart()

    def _tell_published(self) -> None:
        if (step := self.checkpoints.poll()) is not None:
            self.meter.saved(step, self.config.checkpoint.path)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _require_finite(step: int, loss: float, norm: float) -> None:
    """Every rank has the same two numbers, so every rank ends, before the weights are touched."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    raise NonFiniteLossError(
        f"step {step}: loss {loss:.4f}, gradient norm {norm:.4f}: the step was not taken and no "
        "checkpoint holds it; lower training.learningRate, lengthen training.warmupSteps, or look "
        "at the data"
    )
