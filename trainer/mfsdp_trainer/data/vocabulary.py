"""What the model has to know of the tokenizer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a tokenizer."""

    size: int
    """Number of token ids: a model's vocab_size is at least this."""
    end: int
    """Token that ends every document."""
    digest: str
    """SHA-256 of the tokenizer: a checkpoint goes with one tokenizer only."""
