"""All that a run reads: its tokenizer, and the corpora of its sources, below `data_directory`.

tokenizer-<key>/   the tokenizer, as transformers saves it
corpus-<key>/      see `corpus.py`
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mfsdp_trainer.config import DataConfig, DataSource, TrainerConfig
from mfsdp_trainer.config.data import DataContent, TokenizerKind
from mfsdp_trainer.errors import CheckpointError, DataError
from mfsdp_trainer.files import publish_directory, scratch_directory

from .bad import BadRecords
from .batches import Parts
from .chat import ChatTemplate, read_template
from .content import documents
from .corpus import Corpus, described, find_corpus, key
from .documents import HeldOut, TokenRow
from .groups import groups
from .order import Blend, Order, Shuffled
from .place import data_directory
from .stream import Stream
from .tokenizer import (
    Tokenizer,
    byte_tokenizer,
    configured_tokenizer,
    files_digest,
    load_tokenizer,
)
from .vocabulary import Vocabulary

_TEMPLATE: Final = "chat_template.jinja"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made ready: small, it is sent to every rank, which maps the tokens itself."""

    vocabulary: Vocabulary
    corpora: tuple[Corpus, ...]

    @property
    def digest(self) -> str:
        """What is read, token by token, and in which proportions."""
        if len(self.corpora) == 1:
            return self.corpora[0].digest
        parts = [(corpus.digest, corpus.group.weight) for corpus in self.corpora]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def is_same(self, other: "Prepared") -> bool:
        """Whether both hold the same tokens of the same vocabulary."""
        return (self.digest, self.vocabulary) == (other.digest, other.vocabulary)

    @property
    def bad_records(self) -> int:
        """Records of all sources that were left out."""
        return sum(corpus.facts.bad_records for corpus in self.corpora)

    def training(self, data: DataConfig, seed: int) -> tuple[Parts, Order]:
        """What is trained on, and in which order. Raises DataError where it is too little."""
        corpora = [corpus for corpus in self.corpora if corpus.group.held_out < 1]
        parts = _parts([corpus.streams()[0] for corpus in corpora], data)
        if not sum(parts.counts):
            raise DataError(
                f"data.sources hold {parts.tokens} training tokens, fewer than one sequence of "
                f"data.sequenceLength {data.sequence_length} + 1: add text or shorten the sequence"
            )
        for corpus in corpora:
            _require_trained(corpus)
        weights = [corpus.group.weight for corpus in corpora if corpus.group.weight is not None]
        if not weights:
            return parts, Shuffled(parts.counts, seed)
        if 0 in parts.counts:
            index = parts.counts.index(0)
            raise DataError(
                f"data.sources[{index}] does not fill one sequence of data.sequenceLength "
                f"{data.sequence_length} + 1 tokens, so it can have no weight in a blend: add "
                "text, or leave it out"
            )
        return parts, Blend(parts.counts, weights, seed)

    def held_out(self, data: DataConfig) -> Parts:
        """What is evaluated on; maybe nothing."""
        return _parts([corpus.streams()[1] for corpus in self.corpora], data)


def _require_trained(corpus: Corpus) -> None:
    """Raises DataError for tokens of which none is trained on: the model would stay as it is."""
    if corpus.facts.train.tokens and corpus.facts.train.trained == 0:
        paths = ", ".join(str(source.path) for source in corpus.group.sources)
        raise DataError(
            f"data.sources: nothing of {paths} is trained on: all {corpus.facts.train.tokens} "
            "tokens have the label -100: give those to learn their own id in the column labels"
        )


def _parts(streams: list[Stream], data: DataConfig) -> Parts:
    return Parts(streams, data.sequence_length, data.packing)


def prepare(config: TrainerConfig) -> Prepared:
    """Find or make the tokenizer and the corpora of a run. For rank 0 alone.

    Raises DataError and ConfigError as sources and tokenizer do, CheckpointError where
    checkpoint.path cannot be written.
    """
    root = data_directory(config)
    try:
        root.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer(config)
        if any(source.content is DataContent.CHAT for source in _all_sources(config.data)):
            ChatTemplate(tokenizer.transformers)  # says so, if there is none, before hours of work
        corpora = [
            find_corpus(root, group, tokenizer, config.data.max_bad_records)
            for group in groups(config.data)
        ]
    except OSError as error:
        raise CheckpointError(
            f"cannot write the tokenised data to {root}: {error.strerror or error}: give "
            "checkpoint.path or data.cachePath a volume with room"
        ) from error
    return Prepared(tokenizer.vocabulary, tuple(corpora))


def saved_tokenizer(config: TrainerConfig) -> Tokenizer:
    """The tokenizer of a run that `prepare` made ready."""
    return _open_tokenizer(config, _tokenizer_directory(config))


def _all_sources(data: DataConfig) -> tuple[DataSource, ...]:
    return (*data.sources, *data.validation)


def _tokenizer(config: TrainerConfig) -> Tokenizer:
    directory = _tokenizer_directory(config)
    if directory.is_dir():
        return _open_tokenizer(config, directory)
    tokenizer = configured_tokenizer(config.data, config.model, _texts(config.data))
    if config.data.tokenizer.chat_template is not None:
        tokenizer.transformers.chat_template = read_template(config.data.tokenizer.chat_template)
    with scratch_directory(directory) as scratch:
        tokenizer.transformers.save_pretrained(scratch)
        publish_directory(scratch, directory)
    return tokenizer


def _texts(data: DataConfig) -> Iterator[str]:
    """What a BPE tokenizer is trained on: all text that the model is."""
    for group in groups(data):
        if group.megatron is not None or group.held_out == 1:
            continue
        bad = BadRecords(data.max_bad_records)
        for piece in documents(group.sources, HeldOut(group.held_out), bad):
            if piece.held_out or isinstance(piece.content, TokenRow):
                continue
            if isinstance(piece.content, str):
                yield piece.content
            else:
                yield from (str(message.get("content", "")) for message in piece.content)


def _tokenizer_directory(config: TrainerConfig) -> Path:
    chosen = config.data.tokenizer
    settings = chosen.model_dump(mode="json", exclude={"chat_template"})
    depends: list[object] = [settings, config.model.path]
    if chosen.kind is TokenizerKind.BPE:
        # By the sources' names, not their contents: text that grows must not change the meaning
        # of a trained model's tokens.
        depends.append([described(source) for source in config.data.sources])
        depends.append(config.data.validation_fraction)
        if config.data.validation:
            depends.append("validation of its own")
    path = chosen.path or config.model.path
    if chosen.kind is TokenizerKind.HUGGING_FACE and path is not None:
        # By the files' contents: another tokenizer at the same path is another one.
        depends.append(files_digest(path))
    if chosen.chat_template is not None:
        depends.append(read_template(chosen.chat_template))
    return data_directory(config) / f"tokenizer-{key(depends)}"


def _open_tokenizer(config: TrainerConfig, directory: Path) -> Tokenizer:
    """The tokenizer that an earlier start saved."""
    if config.data.tokenizer.kind is TokenizerKind.BYTE:
        tokenizer = byte_tokenizer()
        if (template := directory / _TEMPLATE).is_file():
            tokenizer.transformers.chat_template = template.read_text(encoding="utf-8")
        return tokenizer
    ours = config.data.tokenizer.kind is TokenizerKind.BPE
    return load_tokenizer(directory, "checkpoint.path", special_as_text=ours)
