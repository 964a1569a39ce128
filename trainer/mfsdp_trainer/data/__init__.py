"""Data: local text to documents, to tokens in memory-mapped files, to batches in a fixed order."""
