"""Jobs at the beginning of a story."""

import pytest
from tests.unit.operator.story import Story


@pytest.fixture
def new() -> Story:
    """A job that nobody has looked at."""
    return Story()


@pytest.fixture
def training() -> Story:
    """A job in its first attempt, training on two pods."""
    story = Story()
    story.sees(service=False)
    return story.trains()
