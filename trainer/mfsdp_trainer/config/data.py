"""What the model is trained on: local text, and the tokenizer that reads it."""

from enum import StrEnum

from pydantic import Field, model_validator

from .base import ConfigModel, PathText


class DataFormat(StrEnum):
    """How the files of a source hold documents."""

    TEXT = "text"
    JSONL = "jsonl"


class Builtin(StrEnum):
    """Text that every trainer image carries, for trying things out."""

    PYTHON_STDLIB = "python-stdlib"


class DataSource(ConfigModel):
    """Files of one format; exactly one of path and builtin."""

    path: PathText | None = None
    """A file, a directory (all files below it, but hidden ones) or a glob pattern (** for any
    depth), read in sorted order."""
    builtin: Builtin | None = None
    """python-stdlib: the source code of the Python standard library in the image, a few MB of real
    text."""
    format: DataFormat = DataFormat.TEXT
    """text: each file is a document. jsonl: each line is a JSON object that holds a document in
    textField."""
    text_field: str = Field(default="text", min_length=1, max_length=256)
    """jsonl: the key of the document's text."""

    @model_validator(mode="after")
    def _one_source(self) -> "DataSource":
        if (self.path is None) == (self.builtin is None):
            raise ValueError("set exactly one of path and builtin in each entry of data.sources")
        return self


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
    vocab_size: int = Field(default=4096, ge=300, le=1_000_000)
    """bpe: number of tokens to train."""


class DataConfig(ConfigModel):
    """The training data, its tokenizer and the length of a sequence."""

    sources: tuple[DataSource, ...] = Field(min_length=1, max_length=64)
    """Where documents are read from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    sequence_length: int = Field(default=1024, ge=2, le=1_048_576)
    """Tokens that one training sequence predicts. Documents follow each other in a sequence with an
    end-of-text token between them, and attention crosses from one to the next."""
    validation_fraction: float = Field(default=0.01, ge=0, lt=0.5)
    """Share of the documents held out for evaluation, chosen by a hash of each document's
    content."""
    cache_path: PathText | None = None
    """Directory of the tokenised text, the same files from every node. Unset: beside the
    checkpoints; with those in an object store, below the temporary directory of each node, which
    tokenises for itself."""
