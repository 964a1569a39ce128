"""Parameters that are not trained: no gradient, no optimizer state, no masters."""

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from mfsdp_trainer.errors import ConfigError

SEARCH_SECONDS: Final = 3.0
"""Processor time for one pattern in all names; what is not built to explode takes milliseconds."""


def freeze(model: PreTrainedModel, patterns: Sequence[str]) -> None:
    """Freeze the parameters of a meta model that a pattern is found in the name of.

    A tied weight has two names and goes by either. Raises ConfigError for a pattern that meets no
    parameter or does not come to an end, and where nothing is left to train. Main thread only.
    """
    if not patterns:
        return
    named = list(model.named_parameters(remove_duplicate=False))
    for number, pattern in enumerate(patterns):
        field = f"training.freeze[{number}]: {pattern!r}"
        with _limited(field):
            met = [parameter for name, parameter in named if re.search(pattern, name)]
        if not met:
            raise ConfigError(
                f"{field} meets no parameter of this model: names are like "
                f"{named[len(named) // 2][0]}"
            )
        for parameter in met:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise ConfigError(
            f"training.freeze: {', '.join(map(repr, patterns))} leave nothing to train: "
            f"all {len(named)} parameters are met"
        )


@contextmanager
def _limited(field: str) -> Iterator[None]:
    """Ends a search that would go on for ever: `re` has no limit, but looks for signals."""

    def stop(*_: object) -> None:
        raise ConfigError(
            f"{field} takes more than {SEARCH_SECONDS:g} s to be looked for in the names of this "
            "model: do not repeat what repeats, such as (a+)+"
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def frozen_names(model: nn.Module) -> list[str]:
    """Names of the parameters that are not trained, sorted."""
    return sorted(name for name, p in model.named_parameters() if not p.requires_grad)


def without_masters(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold what is frozen in the number format of the computation: nothing updates it in fp32."""
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
