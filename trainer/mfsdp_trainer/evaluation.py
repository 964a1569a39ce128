"""Loss on held-out text."""

from .data.batches import MicroBatch
from .engines import Engine
from .world import World


def evaluate(engine: Engine, batches: list[MicroBatch], world: World) -> float:
    """Mean loss per token in nats over the batches of all ranks. Collective.

    Every rank brings the same number of batches; not one token among them all is an error of the
    caller.
    """
    total, tokens = 0.0, 0
    with engine.evaluation():
        for batch in batches:
            total += float(engine.loss(batch.to(world.device)))
            tokens += batch.tokens
    loss, count = world.sum([total, tokens])
    return loss / count
