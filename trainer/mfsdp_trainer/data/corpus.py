"""The tokens of one group of sources: made once by rank 0, memory-mapped by every rank.

    corpus-<key>/   tokens and documents (`store.py`), corpus.json

Of a Megatron dataset only corpus.json is kept there. The key is a digest of what the contents
depend on, so a resumed run finds the same tokens, and a changed configuration makes its own. A
directory appears under its name only when it is complete.
"""

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from mfsdp_trainer.config import ConfigModel, DataSource
from mfsdp_trainer.errors import DataError, said
from mfsdp_trainer.files import publish_directory, scratch_directory

from .bad import BadRecords
from .content import documents
from .documents import HeldOut
from .encode import Encoder
from .groups import Group
from .megatron import MegatronDataset, facts_of
from .store import StreamFacts, StreamWriter, open_stream
from .stream import Stream
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary

_VERSION: Final = 2
"""Of the files' layout: a change makes new corpora beside the old ones."""
_FACTS: Final = "corpus.json"

_log = logging.getLogger(__name__)


class CorpusFacts(ConfigModel):
    """The file corpus.json."""

    train: StreamFacts
    validation: StreamFacts
    bad_records: int = Field(default=0, ge=0)
    """Records that were left out."""


@dataclass(frozen=True)
class Corpus:
    """The tokens of a group."""

    directory: Path
    vocabulary: Vocabulary
    group: Group
    facts: CorpusFacts

    @property
    def digest(self) -> str:
        """SHA-256 over all tokens: whether a resumed run reads what it read before."""
        parts = (self.facts.train, self.facts.validation)
        return hashlib.sha256(b"".join(bytes.fromhex(part.digest) for part in parts)).hexdigest()

    def streams(self) -> tuple[Stream, Stream]:
        """The training tokens and the held-out ones, of which there may be none.

        Raises DataError if this node does not see them.
        """
        if self.group.megatron is not None:
            return MegatronDataset(self.group.megatron).split(self.group.held_out)
        dtype = token_dtype(self.vocabulary)
        return (
            open_stream(self.directory, "train", dtype, self.facts.train),
            open_stream(self.directory, "validation", dtype, self.facts.validation),
        )


def token_dtype(vocabulary: Vocabulary) -> "np.dtype[np.unsignedinteger]":
    """The narrowest type on disk that holds every token."""
    return np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)


def find_corpus(root: Path, group: Group, tokenizer: Tokenizer, max_bad: int) -> Corpus:
    """The corpus of a group below `root`, made if there is none. Raises DataError, ConfigError."""
    directory = root / f"corpus-{key(_depends(group, tokenizer))}"
    facts = _open(directory, group, tokenizer)
    # More bad records than are allowed now: read again, to say which.
    if facts is not None and facts.bad_records <= max_bad:
        _log.info("tokens of an earlier start: %s", directory)
        return Corpus(directory, tokenizer.vocabulary, group, facts)
    with scratch_directory(directory) as scratch:
        facts = _make(group, tokenizer, BadRecords(max_bad), scratch)
        (scratch / _FACTS).write_text(facts.model_dump_json(), encoding="utf-8")
        publish_directory(scratch, directory)
    return Corpus(directory, tokenizer.vocabulary, group, facts)


def _depends(group: Group, tokenizer: Tokenizer) -> list[object]:
    sources = [described(source) for source in group.sources]
    stats = [(str(file), *_size_and_time(file)) for file in group.files()]
    template = tokenizer.transformers.chat_template
    depends = [_VERSION, sources, stats, group.held_out, tokenizer.vocabulary.digest]
    return depends + ([template] if template else [])


def described(source: DataSource) -> dict[str, object]:
    """What decides which documents a source has, and nothing that is left at its default: a field
    that comes new to the configuration must not give old data another name."""
    always = {"path", "builtin", "format", "text_field"}
    chosen = source.model_dump(mode="json", exclude_defaults=True, exclude={"weight"})
    return {**source.model_dump(mode="json", include=always), **chosen}


def key(depends: object) -> str:
    """A short digest of what something depends on."""
    return hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def _open(directory: Path, group: Group, tokenizer: Tokenizer) -> CorpusFacts | None:
    """What is in a directory; None if there is none, or a damaged one, which is made again."""
    if not directory.is_dir():
        return None
    try:
        text = (directory / _FACTS).read_text(encoding="utf-8")
        facts = CorpusFacts.model_validate_json(text)
        Corpus(directory, tokenizer.vocabulary, group, facts).streams()
    except (OSError, ValueError, DataError) as error:
        _log.warning("%s is damaged and made again: %s", directory, said(error))
        return None
    return facts


def _make(group: Group, tokenizer: Tokenizer, bad: BadRecords, directory: Path) -> CorpusFacts:
    begun = time.monotonic()
    if group.megatron is not None:
        facts = _checked(group.megatron, group.held_out, tokenizer.vocabulary)
    else:
        facts = _tokenised(group, tokenizer, bad, directory)
    bad.report()
    _log.info(
        "read %d files in %.1f s: %d training tokens, %d held out",
        len(group.files()),
        time.monotonic() - begun,
        facts.train.tokens,
        facts.validation.tokens,
    )
    return facts


def _checked(source: DataSource, held_out: float, vocabulary: Vocabulary) -> CorpusFacts:
    dataset = MegatronDataset(source)
    dataset.check(vocabulary.size)
    train, validation = dataset.split(held_out)
    return CorpusFacts(train=facts_of(train), validation=facts_of(validation))


def _tokenised(group: Group, tokenizer: Tokenizer, bad: BadRecords, directory: Path) -> CorpusFacts:
    dtype = token_dtype(tokenizer.vocabulary)
    with (
        StreamWriter(directory, "train", dtype) as train,
        StreamWriter(directory, "validation", dtype) as validation,
    ):
        pieces = documents(group.sources, HeldOut(group.held_out), bad)
        for part in Encoder(tokenizer, bad).encode(pieces):
            (validation if part.held_out else train).write(part.ids, part.trained, ends=part.ends)
    return CorpusFacts(train=train.facts(), validation=validation.facts(), bad_records=bad.count)
