"""Which weights a directory holds, without reading them through."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SAMPLE: Final = 4096
"""Bytes read of each tensor."""


def fingerprint(files: Iterable[Path]) -> str:
    """A digest of weights in safetensors files: each tensor's place and a part of its contents.

    Two models differ in nearly every tensor, so a part of each tells them apart, and a model of
    hundreds of gigabytes is not read through.
    """
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = stream.read(length)
            digest.update(header)
            for name, entry in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    stream.seek(8 + length + begin)
                    digest.update(stream.read(min(_SAMPLE, end - begin)))
    return digest.hexdigest()
