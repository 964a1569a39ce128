"""`logging.jsonLines`: one JSON object a line for each thing that happens."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic.alias_generators import to_camel

from mfsdp_trainer.errors import ConfigError

from .record import Record, Value


class JsonLines:
    """Appends to one file over all attempts of a run; every line says which attempt wrote it."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Raises ConfigError for a file that cannot be written."""
        self._attempt = attempt
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"logging.jsonLines {path} cannot be written ({error.strerror}): choose a file in "
                "a directory that the trainer may write, for instance below checkpoint.path"
            ) from None
        self._mend()

    def _mend(self) -> None:
        """End a line that an attempt before was killed in."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def take(self, record: Record) -> None:
        """See `Tracker.take`."""
        line = {
            "kind": record.kind,
            "time": round(record.time, 3),
            "attempt": self._attempt,
            "step": record.step,
            **{to_camel(name): _plain(value) for name, value in record.values.items()},
        }
        # One write a line: whoever follows the file never meets half of one.
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self, *, well: bool) -> None:
        """See `Tracker.close`."""
        os.close(self._file)


def _plain(value: Value) -> object:
    """What JSON has a word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return dict(value) if isinstance(value, Mapping) else value
