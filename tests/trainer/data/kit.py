"""Data of every kind, and what a run makes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.prepare import Prepared, prepare
from mfsdp_trainer.data.stream import Stream


def config(path: Path, *sources: dict[str, Any], **data: Any) -> TrainerConfig:
    """A run whose data are `sources`, and whose checkpoints lie in `path`."""
    return TrainerConfig.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {
                "sources": list(sources),
                "validationFraction": 0,
                "sequenceLength": 8,
                **data,
            },
            "training": {"steps": 1, "globalBatchSize": 1},
            "checkpoint": {"path": str(path / "run")},
        }
    )


def prepared(path: Path, *sources: dict[str, Any], **data: Any) -> Prepared:
    return prepare(config(path, *sources, **data))


def streams(path: Path, *sources: dict[str, Any], **data: Any) -> tuple[Stream, Stream]:
    """Training and held-out tokens of sources that are one group."""
    (corpus,) = prepared(path, *sources, **data).corpora
    return corpus.streams()


def documents(stream: Stream) -> list[list[int]]:
    """A stream's documents."""
    return [part.tolist() for part in np.split(stream.tokens, stream.starts[1:])]


def trained(stream: Stream) -> str:
    """What is trained on, as text; what is not, as a dot for each token."""
    untrained = stream.untrained(0, len(stream))
    pairs = zip(stream.tokens.tolist(), untrained.tolist(), strict=True)
    return "".join("." if hidden else chr(token) for token, hidden in pairs)


def write_lines(file: Path, *records: Any) -> Path:
    """A file with a record a line; text is written as it is."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
