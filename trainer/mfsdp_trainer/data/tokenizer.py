"""Tokenizers without downloads: bytes, BPE trained on the data at hand, a local directory.

Each is an ordinary transformers tokenizer in the end, so that the exported model opens without
this package. In the byte tokenizer a token's id is the byte's value, so text is encoded by looking
at its bytes.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mfsdp_trainer.config import DataConfig, ModelConfig
from mfsdp_trainer.config.data import TokenizerKind
from mfsdp_trainer.errors import ConfigError, DataError, said

from .vocabulary import Vocabulary

_END: Final = "<|endoftext|>"
_BPE_TRAINING_CHARACTERS: Final = 200_000_000
"""BPE merges are settled long before: more text would cost minutes and memory for nothing."""

_FILES: Final = ("tokenizer*.json", "vocab*", "*.model", "*.tiktoken", "spiece*")
_BESIDE: Final = (
    "special_tokens_map.json",
    "added_tokens.json",
    "merges*",
    "chat_template*",
    "additional_chat_templates/*",
)
"""What else a tokenizer's directory says of it."""

_log = logging.getLogger(__name__)


class Tokenizer:
    """A transformers tokenizer and how a corpus is encoded with it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        plain_bytes: bool = False,
        special_as_text: bool = False,
    ) -> None:
        """`plain_bytes`: ids are the values of bytes. `special_as_text`: a document that spells
        out a special token means its letters, since nobody but us ends documents."""
        self.transformers = tokenizer
        self._plain_bytes = plain_bytes
        self._special_as_text = special_as_text

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Size, end token and identity."""
        return Vocabulary(
            # Ids may have holes: the count of tokens would be too small.
            size=max(len(self.transformers), max(self.transformers.get_vocab().values()) + 1),
            end=int(self.transformers.eos_token_id),
            digest=_digest(self.transformers),
        )

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Token ids of each text, with the end token after each."""
        end = np.array([self.vocabulary.end], dtype=np.uint32)
        return [np.concatenate([ids, end]) for ids in self._ids(texts)]

    def _ids(self, texts: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
        if self._plain_bytes:
            for text in texts:
                raw = text.encode("utf-8", errors="surrogatepass")
                yield np.frombuffer(raw, dtype=np.uint8).astype(np.uint32)
            return
        encoded = self.transformers(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=self._special_as_text,
            return_attention_mask=False,
            verbose=False,
        )
        for ids in encoded["input_ids"]:
            yield np.asarray(ids, dtype=np.uint32)


def _digest(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab())
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _wrap(backend: Backend) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=_END,
        bos_token=_END,
        clean_up_tokenization_spaces=False,
    )


def byte_tokenizer() -> Tokenizer:
    """One token a UTF-8 byte, its id the byte's value; 256 ends a document."""
    # Byte-level tokenizers write bytes as printable characters: printable ones as themselves, the
    # others, in order, as the code points from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(256 + index): byte for index, byte in enumerate(others)}
    vocabulary[_END] = 256
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(_wrap(backend), plain_bytes=True)


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte-level BPE of `size` tokens, trained on the texts; the same texts give the same one."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_up_to_limit(texts), trainer)
    _log.info("trained a BPE tokenizer of %d tokens", backend.get_vocab_size())
    return Tokenizer(_wrap(backend), special_as_text=True)


def _up_to_limit(texts: Iterable[str]) -> Iterator[str]:
    seen = 0
    for text in texts:
        if seen > _BPE_TRAINING_CHARACTERS:
            _log.info("the BPE tokenizer is trained on the first %d characters", seen)
            return
        seen += len(text)
        yield text


def load_tokenizer(directory: Path, field: str, *, special_as_text: bool = False) -> Tokenizer:
    """A tokenizer from a local directory; `field` is where its path was configured.

    Raises DataError if it cannot be read, ConfigError if it has no end token.
    """
    if not directory.is_dir():
        raise DataError(f"{field} {directory}: no such directory in the container")
    if not _holds_tokenizer(directory):
        raise DataError(
            f"{field} {directory}: it holds no tokenizer ({', '.join(_FILES)}): name the directory "
            "that has one"
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        raise DataError(f"{field} {directory}: not a tokenizer: {said(error)}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"{field} {directory}: this tokenizer has no eos_token to end documents with: set one "
            "in its tokenizer_config.json"
        )
    return Tokenizer(tokenizer, special_as_text=special_as_text)


@cache
def files_digest(path: str) -> str:
    """SHA-256 of the files of a tokenizer's directory, as they were when first read: whether it is
    still the same one. Raises DataError."""
    directory, digest = Path(path), hashlib.sha256()
    found = {file for form in (*_FILES, *_BESIDE) for file in directory.glob(form)}
    try:
        for file in sorted(found):
            if file.is_file():
                contents = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(directory)} {contents}\n".encode())
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def configured_tokenizer(data: DataConfig, model: ModelConfig, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer of the configuration; `texts` are what a BPE one is trained on.

    Raises DataError, ConfigError where it cannot be read or is not that of the model's weights.
    """
    chosen = data.tokenizer
    if chosen.kind is TokenizerKind.BYTE:
        return _of_the_weights(byte_tokenizer(), chosen.kind, model)
    if chosen.kind is TokenizerKind.BPE:
        return _of_the_weights(train_bpe(texts, chosen.vocab_size), chosen.kind, model)
    if chosen.path is not None:
        return load_tokenizer(Path(chosen.path), "data.tokenizer.path")
    if model.path is None:
        raise ConfigError("data.tokenizer.path: kind huggingface needs it, or model.path")
    return load_tokenizer(Path(model.path), "model.path")


def _of_the_weights(tokenizer: Tokenizer, kind: TokenizerKind, model: ModelConfig) -> Tokenizer:
    """The tokenizer, if the weights that training starts from may have been trained with it."""
    if model.path is None or model.random_init or not _holds_tokenizer(Path(model.path)):
        return tokenizer
    try:
        own: Vocabulary | None = load_tokenizer(Path(model.path), "model.path").vocabulary
    except (DataError, ConfigError):
        own = None  # cannot be read: another one in any case
    if own != tokenizer.vocabulary:
        raise ConfigError(
            f"data.tokenizer.kind is {kind}, but model.path {model.path} has a tokenizer of its "
            "own that its weights were trained with: set kind to huggingface, or model.randomInit"
        )
    return tokenizer


def _holds_tokenizer(directory: Path) -> bool:
    return any(file for form in _FILES for file in directory.glob(form))
