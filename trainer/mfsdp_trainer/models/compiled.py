"""Decoder layers compiled by torch.compile.

Each layer's own forward method alone, with recompute inside: what engines hang on a layer stays
outside, and one compilation serves all layers that are alike.
"""

import os
import shutil
from typing import Any

import torch
from torch import nn

from mfsdp_trainer.errors import ConfigError


def compile_layer(layer: nn.Module) -> None:
    """Compile a layer at its first forward pass.

    Raises ConfigError where torch could not: it writes C++ or, for GPUs, a launcher in C.
    """
    compiler = os.environ.get("CXX") or os.environ.get("CC")
    if not any(shutil.which(name) for name in (compiler or "", "c++", "g++", "gcc", "clang")):
        raise ConfigError(
            "performance.compile needs a C compiler, and this image has none: add gcc and g++ to "
            "the trainer's image, or set performance.compile to false"
        )
    forward: Any = torch.compile(layer.forward)
    layer.forward = forward
