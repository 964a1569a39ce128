"""What the last lines of a run say of its data."""

import logging

import pytest

from mfsdp_trainer.observe.speed import Scale
from mfsdp_trainer.observe.summary import Totals, say_summary
from mfsdp_trainer.observe.timeline import Part


def said(totals: Totals, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.INFO, "mfsdp_trainer"):
        say_summary(totals, totals.values({Part.TRAINING: 1.0}, SCALE))
    return caplog.messages


SCALE = Scale(1, "process")


def test_bad_records_are_counted_in_the_summary(caplog: pytest.LogCaptureFixture) -> None:
    totals = Totals(bad_records=3)
    totals.count(1, 2.5, 100)
    assert "summary: 3 bad records of the data were left out" in said(totals, caplog)


def test_a_step_of_which_nothing_is_trained_on_is_not_the_best(
    caplog: pytest.LogCaptureFixture,
) -> None:
    totals = Totals()
    totals.count(1, 0.0, 0)
    assert not [line for line in said(totals, caplog) if "loss" in line]
    totals.count(2, 2.5, 100)
    totals.count(3, 0.0, 0)
    assert "summary: loss 2.5000 (lowest 2.5000 at step 2)" in said(totals, caplog)
