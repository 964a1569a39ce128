"""Models: transformers causal language models, from a config or a directory, to an export."""
