"""Looks at the model of a configuration without its weights: what `mfsdp plan` adds up.

`python -m mfsdp_trainer.inspection` reads a configuration as JSON and writes `ModelFacts` as JSON:
the `mfsdp` command imports no torch, and asks in a process of its own.
"""
