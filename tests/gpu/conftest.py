"""Tests that need GPUs: started by run.sh, skipped by all else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.gang import ON_GPU, Gang


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not ON_GPU and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: tests/gpu/run.sh runs it"))


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    gang = Gang()
    yield gang
    gang.stop()


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for some steps of a model that keeps a GPU busy."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    lines = (f"line {n}: {n * n} is the square of {n}, not {n * n + n}.\n" for n in range(60_000))
    file.write_text("".join(lines), encoding="utf-8")
    return file
