"""The tokenised corpus: made once by rank 0 beside the checkpoints, memory-mapped by every rank.

    <checkpoint.path>/data/tokenizer-<key>/   the tokenizer, as transformers saves it
    <checkpoint.path>/data/corpus-<key>/      train.bin, validation.bin, corpus.json

Keys are digests of what the contents depend on, so a resumed run finds the same tokenizer and the
same tokens, and a changed configuration makes its own. A directory appears under its name only
when it is complete.
"""

import hashlib
import json
import logging
import time
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mfsdp_trainer.config import ConfigModel, DataConfig, TrainerConfig
from mfsdp_trainer.config.data import TokenizerKind
from mfsdp_trainer.errors import CheckpointError, DataError, said
from mfsdp_trainer.files import publish_directory, scratch_directory

from .place import data_directory
from .sources import documents, source_files
from .tokenizer import Tokenizer, byte_tokenizer, configured_tokenizer, load_tokenizer
from .vocabulary import Vocabulary

_BATCH: Final = 64
_VERSION: Final = 1
"""Of the files' layout: a change makes new corpora beside the old ones."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A tokenised corpus on disk."""

    directory: Path
    vocabulary: Vocabulary
    digest: str
    """SHA-256 over all tokens: whether a resumed run reads what it read before."""
    train_tokens: int
    validation_tokens: int

    def train(self) -> NDArray[np.unsignedinteger]:
        """The training tokens, memory-mapped."""
        return self._map("train.bin", self.train_tokens)

    def validation(self) -> NDArray[np.unsignedinteger]:
        """The held-out tokens, memory-mapped; maybe none."""
        return self._map("validation.bin", self.validation_tokens)

    def is_same(self, other: "Corpus") -> bool:
        """Whether both hold the same tokens of the same vocabulary."""
        return (self.digest, self.vocabulary) == (other.digest, other.vocabulary)

    def _map(self, name: str, tokens: int) -> NDArray[np.unsignedinteger]:
        dtype = token_dtype(self.vocabulary)
        if not tokens:
            return np.empty(0, dtype=dtype)
        file = self.directory / name
        if not file.is_file() or file.stat().st_size != tokens * dtype.itemsize:
            raise DataError(
                f"{file}: missing or incomplete on this node: checkpoint.path must be one "
                "directory that all nodes share (a ReadWriteMany volume)"
            )
        return np.memmap(file, dtype=dtype, mode="r", shape=(tokens,))


def token_dtype(vocabulary: Vocabulary) -> "np.dtype[np.unsignedinteger]":
    """The narrowest type on disk that holds every token."""
    return np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)


def saved_tokenizer(config: TrainerConfig) -> Tokenizer:
    """The tokenizer of a run that `prepare` made ready."""
    return _open_tokenizer(config, _tokenizer_directory(config))


def prepare(config: TrainerConfig) -> Corpus:
    """Find or make the tokenizer and the corpus of a run. For rank 0 alone.

    Raises DataError and ConfigError as sources and tokenizer do, CheckpointError where
    checkpoint.path cannot be written.
    """
    root = data_directory(config)
    try:
        root.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer(config)
        return _find_corpus(config.data, tokenizer, root)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the tokenised data to {root}: {error.strerror or error}: give "
            "checkpoint.path or data.cachePath a volume with room"
        ) from error


def _tokenizer(config: TrainerConfig) -> Tokenizer:
    directory = _tokenizer_directory(config)
    if directory.is_dir():
        return _open_tokenizer(config, directory)
    texts = (text for text in documents(config.data.sources) if not _held_out(text, config.data))
    tokenizer = configured_tokenizer(config.data, config.model, texts)
    with scratch_directory(directory) as scratch:
        tokenizer.transformers.save_pretrained(scratch)
        publish_directory(scratch, directory)
    return tokenizer


def _tokenizer_directory(config: TrainerConfig) -> Path:
    depends: list[object] = [config.data.tokenizer.model_dump(mode="json"), config.model.path]
    if config.data.tokenizer.kind is TokenizerKind.BPE:
        # By the sources' names, not their contents: text that grows must not change the meaning
        # of a trained model's tokens.
        depends.append([source.model_dump(mode="json") for source in config.data.sources])
        depends.append(config.data.validation_fraction)
    return data_directory(config) / f"tokenizer-{_key(depends)}"


def _open_tokenizer(config: TrainerConfig, directory: Path) -> Tokenizer:
    """The tokenizer that an earlier start saved."""
    if config.data.tokenizer.kind is TokenizerKind.BYTE:
        return byte_tokenizer()
    ours = config.data.tokenizer.kind is TokenizerKind.BPE
    return load_tokenizer(directory, "checkpoint.path", special_as_text=ours)


def _key(depends: object) -> str:
    text = json.dumps(depends, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_corpus(data: DataConfig, tokenizer: Tokenizer, root: Path) -> Corpus:
    files = [file for source in data.sources for file in source_files(source)]
    stats = [(str(file), *_size_and_time(file)) for file in files]
    sources = [source.model_dump(mode="json") for source in data.sources]
    depends = [_VERSION, sources, stats, data.validation_fraction, tokenizer.vocabulary.digest]
    directory = root / f"corpus-{_key(depends)}"
    if (found := _open_corpus(directory, tokenizer.vocabulary)) is not None:
        _log.info("tokens of an earlier start: %s", directory)
        return found
    with scratch_directory(directory) as scratch:
        facts = _tokenise(data, tokenizer, scratch, len(files))
        publish_directory(scratch, directory)
    return Corpus(directory, tokenizer.vocabulary, **facts.model_dump())


def _open_corpus(directory: Path, vocabulary: Vocabulary) -> Corpus | None:
    """The corpus in a directory; None if there is none, or a damaged one, which is made again."""
    if not directory.is_dir():
        return None
    try:
        text = (directory / "corpus.json").read_text(encoding="utf-8")
        corpus = Corpus(directory, vocabulary, **_Facts.model_validate_json(text).model_dump())
        corpus.train(), corpus.validation()
    except (OSError, ValueError, DataError) as error:
        _log.warning("%s is damaged and made again: %s", directory, said(error))
        return None
    return corpus


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


class _Facts(ConfigModel):
    """The file corpus.json."""

    digest: str
    train_tokens: int = Field(ge=0)
    validation_tokens: int = Field(ge=0)


@dataclass
class _Part:
    """One token file while it is written."""

    stream: BinaryIO
    dtype: "np.dtype[np.unsignedinteger]"
    tokens: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def write(self, ids: NDArray[np.uint32]) -> None:
        raw = ids.astype(self.dtype).tobytes()
        self.stream.write(raw)
        self.digest.update(raw)
        self.tokens += len(ids)


def _tokenise(data: DataConfig, tokenizer: Tokenizer, directory: Path, files: int) -> _Facts:
    begun = time.monotonic()
    dtype = token_dtype(tokenizer.vocabulary)
    with (
        (directory / "train.bin").open("wb") as train_file,
        (directory / "validation.bin").open("wb") as validation_file,
    ):
        train, validation = _Part(train_file, dtype), _Part(validation_file, dtype)
        for texts in batched(documents(data.sources), _BATCH):
            for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
                (validation if _held_out(text, data) else train).write(ids)
    facts = _Facts(
        digest=hashlib.sha256(train.digest.digest() + validation.digest.digest()).hexdigest(),
        train_tokens=train.tokens,
        validation_tokens=validation.tokens,
    )
    # By the fields' Python names, as in every corpus so far.
    (directory / "corpus.json").write_text(facts.model_dump_json(by_alias=False), encoding="utf-8")
    _log.info(
        "tokenised %d files in %.1f s: %d training tokens, %d held out",
        files,
        time.monotonic() - begun,
        train.tokens,
        validation.tokens,
    )
    return facts


def _held_out(text: str, data: DataConfig) -> bool:
    """Whether a document is for evaluation: by its content, so that copies fall on one side."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) < data.validation_fraction * 2**64
