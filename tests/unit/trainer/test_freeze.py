"""Patterns of `training.freeze` in the names of a model."""

import re
import signal

import pytest
from tests.trainer.runs import TINY
from transformers import AutoConfig

from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models import freeze as module
from mfsdp_trainer.models.architecture import build_meta
from mfsdp_trainer.models.freeze import freeze, frozen_names

EXPLODES = "([a-z_.0-9]+)+$!"


@pytest.mark.timeout(60)
def test_a_search_without_end_is_refused_with_its_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEARCH_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGVTALRM)
    model = build_meta(AutoConfig.for_model(**TINY))
    wanted = re.escape(f"training.freeze[1]: {EXPLODES!r} takes more than 0.2 s to be looked for")
    with pytest.raises(ConfigError, match=wanted):
        freeze(model, ["norm", EXPLODES])
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_what_is_met_is_frozen() -> None:
    model = build_meta(AutoConfig.for_model(**TINY))
    freeze(model, ["embed_tokens"])
    assert frozen_names(model) == ["model.embed_tokens.weight"]
