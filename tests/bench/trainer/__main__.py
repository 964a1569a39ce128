"""python -m tests.bench.trainer [SECTION ...]: the trainer's figures, a table a section."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.report import Figure, show
from tests.bench.trainer import memory, pipeline, saves, start, throughput
from tests.trainer.gang import Gang

PAIRS = 40


def _throughput(gang: Gang, text: Path, directory: Path) -> list[Figure]:
    figures = []
    for strategy in ("ddp", "optim_grads_params"):
        figures += throughput.measure(
            gang, text, directory / strategy, strategy=strategy, pairs=PAIRS
        )
    return figures


SECTIONS: Mapping[str, Callable[[Gang, Path, Path], list[Figure]]] = {
    "throughput": _throughput,
    "saves": saves.measure,
    "memory": memory.measure,
    "pipeline": pipeline.measure,
    "start": start.measure,
}


def _text(directory: Path) -> Path:
    """Some 12 MB: enough tokens for every section."""
    file = directory / "text.txt"
    with file.open("w", encoding="utf-8") as stream:
        for number in range(250_000):
            stream.write(f"line {number}: {number * number} is the square of {number}.\n")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    chosen = parser.parse_args().sections or list(SECTIONS)
    if unknown := set(chosen) - SECTIONS.keys():
        sys.exit(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        text = _text(Path(name))
        for section in chosen:
            gang = Gang(2)
            try:
                show(section, SECTIONS[section](gang, text, Path(name) / section))
            finally:
                gang.stop()


if __name__ == "__main__":
    main()
