"""Lines and records that cannot be used: counted, the first ones told, too many an error."""

import logging
from typing import Final

from mfsdp_trainer.errors import DataError

_TOLD: Final = 5

_log = logging.getLogger(__name__)


class BadRecordError(Exception):
    """Why a record cannot be used, in words that go after its place."""


class BadRecords:
    """Those of one reading of the data."""

    def __init__(self, limit: int) -> None:
        """`limit`: how many may be left out."""
        self._limit = limit
        self._first: list[str] = []
        self.count = 0
        """Records that were left out."""

    def add(self, where: str, why: object) -> None:
        """Leave a record out. Raises DataError past the limit."""
        self.count += 1
        line = f"{where}: {why}"
        if self.count > self._limit:
            raise DataError(line if not self._limit else f"{line} ({self._excess()})")
        if len(self._first) < _TOLD:
            self._first.append(line)

    def _excess(self) -> str:
        return f"and {self._limit} before, which is what data.maxBadRecords allows"

    def report(self) -> None:
        """Warn of what was left out, if anything was."""
        if self.count:
            first = "; ".join(self._first)
            _log.warning("%d bad records were left out, the first: %s", self.count, first)
