"""What the model is trained on: local data, and the tokenizer that reads it."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from pydantic import Field, model_validator

from .base import ConfigModel, PathText

RECORDS: Final = ("jsonl", "parquet", "arrow")
RECORD_SUFFIXES: Final = ("jsonl", "parquet")
"""Those that say what is in a file."""
TEXT_FIELD: Final = "text"
MESSAGES_FIELD: Final = "messages"
TOKENS_FIELD: Final = "input_ids"
BPE_SIZE: Final = 4096

DATA_FIELDS: Final = (
    "textField, messagesField and tokensField are of records: set format to jsonl, parquet or "
    "arrow, or drop them"
)
DATA_FIELD: Final = (
    "textField is of content text, messagesField of chat, tokensField of tokens: set content to "
    "match, or drop the field"
)
SIZE_OF_BPE: Final = "data.tokenizer.vocabSize is of kind bpe: set kind to bpe, or drop vocabSize"
CACHE_PATH: Final = (
    "data.cachePath must be a directory, not an object store: tokens are memory-mapped"
)


class DataFormat(StrEnum):
    """How the files of a source hold documents."""

    TEXT = "text"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    MEGATRON = "megatron"


class DataContent(StrEnum):
    """What a record of a source is."""

    TEXT = "text"
    CHAT = "chat"
    TOKENS = "tokens"


class Builtin(StrEnum):
    """Text that every trainer image carries, for trying things out."""

    PYTHON_STDLIB = "python-stdlib"


class DataSource(ConfigModel):
    """Files of one format; exactly one of path and builtin."""

    path: PathText | None = None
    """A file, a directory (all files below it, but hidden ones; of parquet those named *.parquet)
    or a glob pattern (** for any depth), read in sorted order. arrow: the directory that
    save_to_disk wrote. megatron: the path of one .bin and .idx, without the suffix."""
    builtin: Builtin | None = None
    """python-stdlib: the source code of the Python standard library in the image, a few MB of real
    text."""
    format: DataFormat = DataFormat.TEXT
    """text: each file is a document. jsonl: each line is a record, a JSON object. parquet: each row
    is one. arrow: each row of a Hugging Face dataset on disk is one. megatron: tokenised documents
    that Megatron wrote, used where they are."""
    content: DataContent = DataContent.TEXT
    """What a record of jsonl, parquet or arrow is. text: a document in textField. chat: a
    conversation in messagesField, written out by the tokenizer's chat template; only what the
    assistant says is trained on. tokens: a tokenised document in tokensField; where a column labels
    stands beside it, tokens with -100 there are not trained on."""
    text_field: str = Field(default=TEXT_FIELD, min_length=1, max_length=256)
    """text: the record's key, or column, of the document."""
    messages_field: str = Field(default=MESSAGES_FIELD, min_length=1, max_length=256)
    """chat: the key of the list of messages, each an object with role and content."""
    tokens_field: str = Field(default=TOKENS_FIELD, min_length=1, max_length=256)
    """tokens: the key of the list of token ids."""
    split: str | None = Field(default=None, min_length=1, max_length=256)
    """arrow: which split is read of a dataset that has several."""
    weight: int | None = Field(default=None, ge=1, le=1000)
    """Part of the training sequences that come from this source, relative to the weights of the
    others, e.g. 70 and 30: exact within one sequence at any time. A source that runs out begins
    again in another order. Give all sources a weight, or none: without, each sequence of each
    source is read once an epoch."""

    @model_validator(mode="after")
    def _one_source(self) -> "DataSource":
        if (self.path is None) == (self.builtin is None):
            raise ValueError("set exactly one of path and builtin in each entry of data.sources")
        if self.builtin is not None and self.format is not DataFormat.TEXT:
            raise ValueError("builtin is text: leave out format, or set it to text")
        if self.content is not DataContent.TEXT and self.format not in RECORDS:
            raise ValueError(
                "content chat and tokens are records: set format to jsonl, parquet or arrow"
            )
        self._require_fields()
        suffix = PurePosixPath(self.path or "").suffix[1:]
        if self.format is DataFormat.TEXT and suffix in RECORD_SUFFIXES:
            raise ValueError(f"{self.path} is not text: set format to {suffix}")
        if self.split is not None and self.format is not DataFormat.ARROW:
            raise ValueError("split is for format arrow: set it, or leave out split")
        return self

    def _require_fields(self) -> None:
        """Names of fields stand where such are read. The CRD cannot tell a default from a wish."""
        named = {
            DataContent.TEXT: self.text_field != TEXT_FIELD,
            DataContent.CHAT: self.messages_field != MESSAGES_FIELD,
            DataContent.TOKENS: self.tokens_field != TOKENS_FIELD,
        }
        if self.format not in RECORDS and any(named.values()):
            raise ValueError(DATA_FIELDS)
        if any(found for content, found in named.items() if content is not self.content):
            raise ValueError(DATA_FIELD)


class TokenizerKind(StrEnum):
    """Where the tokenizer comes from. None of them downloads anything."""

    BYTE = "byte"
    BPE = "bpe"
    HUGGING_FACE = "huggingface"


class TokenizerConfig(ConfigModel):
    """How text becomes tokens."""

    kind: TokenizerKind = TokenizerKind.BYTE
    """byte: one token a UTF-8 byte. bpe: trained on the training data when the run starts, once.
    huggingface: a local tokenizer directory, from tokenizer.path or else model.path."""
    path: PathText | None = None
    """huggingface: local directory of the tokenizer."""
    vocab_size: int = Field(default=BPE_SIZE, ge=300, le=1_000_000)
    """bpe: number of tokens to train."""
    chat_template: PathText | None = None
    """File with a chat template (Jinja) that takes the place of the tokenizer's own, and is
    exported with it. {% generation %} tags say what the assistant wrote; without them it is found
    by rendering each conversation turn by turn."""

    @model_validator(mode="after")
    def _size_of_bpe(self) -> "TokenizerConfig":
        if self.vocab_size != BPE_SIZE and self.kind is not TokenizerKind.BPE:
            raise ValueError(SIZE_OF_BPE)
        return self


class Packing(StrEnum):
    """What attention sees of a sequence that holds several documents."""

    DOCUMENTS = "documents"
    PLAIN = "plain"


class DataConfig(ConfigModel):
    """The training data, its tokenizer and the length of a sequence."""

    sources: tuple[DataSource, ...] = Field(min_length=1, max_length=64)
    """Where documents are read from."""
    validation: tuple[DataSource, ...] = Field(default=(), max_length=64)
    """Where documents for evaluation are read from, in place of holding out validationFraction of
    the sources. No weights."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    sequence_length: int = Field(default=1024, ge=2, le=1_048_576)
    """Tokens that one training sequence predicts. Documents follow each other in a sequence; text
    has an end-of-text token after each."""
    packing: Packing = Packing.DOCUMENTS
    """documents: each token sees its own document only, positions count from 0 in each, and no
    document's first token is predicted. plain: attention crosses from one document to the next,
    whose first token is predicted from the end-of-text token before it."""
    validation_fraction: float = Field(default=0.01, ge=0, lt=0.5)
    """Share of the documents held out for evaluation, chosen by a hash of each document's content;
    of a megatron source the last documents."""
    max_bad_records: int = Field(default=0, ge=0, le=1_000_000_000)
    """Lines and records that may be left out because they are not what format and content say:
    of a source with a weight, or of all those without one together (and of data.validation
    together). The first ones are told in the log; one more fails the job."""
    cache_path: PathText | None = None
    """Directory of the tokenised text, the same files from every node. Unset: beside the
    checkpoints; with those in an object store, below the temporary directory of each node, which
    tokenises for itself."""

    @property
    def chats(self) -> bool:
        """Whether conversations are trained on."""
        return any(source.content is DataContent.CHAT for source in self.sources)

    @model_validator(mode="after")
    def _consistent(self) -> "DataConfig":
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError("give every entry of data.sources a weight, or none of them")
        if any(source.weight is not None for source in self.validation):
            raise ValueError("data.validation takes no weight: leave it out")
        if self.cache_path is not None and "://" in self.cache_path:
            raise ValueError(CACHE_PATH)
        return self
