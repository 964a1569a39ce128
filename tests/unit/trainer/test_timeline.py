"""Every second of a run belongs to one part of it."""

import json
import os
import subprocess
import sys

import pytest

from mfsdp_trainer.contract import Phase
from mfsdp_trainer.observe.timeline import Part, Timeline, process_age


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_parts_add_up_and_the_first_step_is_apart() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    story = [
        (3, lambda: timeline.phase(Phase.LOADING, first=True)),
        (2, lambda: timeline.enter(Part.MODEL)),
        (4, lambda: timeline.phase(Phase.TRAINING, first=True)),
        (7, timeline.stepped),
        (10, timeline.stepped),
        (1, lambda: timeline.phase(Phase.SAVING, first=False)),
        (5, lambda: timeline.phase(Phase.TRAINING, first=False)),
        (10, lambda: timeline.phase(Phase.DONE, first=False)),
    ]
    for seconds, happens in story:
        clock.now += seconds
        happens()
    clock.now += 1000
    assert timeline.seconds() == {
        Part.IMPORTS: 3,
        Part.DATA: 2,
        Part.MODEL: 4,
        Part.FIRST_STEP: 7,
        Part.TRAINING: 21,
        Part.SAVING: 5,
    }


def test_what_is_under_way_counts_too() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    clock.now += 6
    assert timeline.seconds() == {Part.IMPORTS: 6}
    clock.now += 1
    assert timeline.seconds() == {Part.IMPORTS: 7}


def test_a_process_counts_from_its_own_start() -> None:
    """Time before the worker began is the launcher's."""
    code = (
        "import json, os; from mfsdp_trainer.observe.timeline import Timeline; "
        "print(json.dumps(Timeline.of_process(os.getppid()).seconds()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    seconds = json.loads(answer)
    assert list(seconds) == ["launch", "imports"]
    assert 0 < seconds["imports"] < 60
    age = process_age(os.getpid())
    assert seconds["launch"] + seconds["imports"] == pytest.approx(age, abs=5.0)
    assert process_age(2**22 + 1) == 0
