"""Which checkpoints are kept. Pure."""

from collections.abc import Mapping

from .store import step_of

type Losses = Mapping[str, float | None]
"""Loss on held-out text of each complete checkpoint by its name, where it was measured."""


def best_first(losses: Losses) -> list[str]:
    """Names of those with a loss, the lowest first, of equal ones the newest."""
    measured = {name: loss for name, loss in losses.items() if loss is not None}
    return sorted(measured, key=lambda name: (measured[name], -step_of(name)))


def redundant(
    losses: Losses, newest: str, *, keep: int, keep_best: int, damaged: frozenset[str] = frozenset()
) -> list[str]:
    """What to remove after `newest` was published; never that one, nor the best ones.

    Those with a higher step are of a run that was started over: they would be resumed from. Those
    that could not be read count for nothing.
    """
    step = step_of(newest)
    ahead = [name for name in losses if step_of(name) > step]
    whole = {n: loss for n, loss in losses.items() if step_of(n) <= step and n not in damaged}
    recent = sorted({*whole, newest}, key=step_of, reverse=True)[:keep]
    kept = {*recent, *best_first(whole)[:keep_best]}
    return [*ahead, *(name for name in losses if step_of(name) <= step and name not in kept)]
