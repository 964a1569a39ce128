"""Tensors that may be sharded."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, or the plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
