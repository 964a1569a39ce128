"""What this rank owns of each parameter: plain tensors to train, DTensors to save.

Megatron FSDP cuts the concatenation of many parameters into equal parts, between rows. So a rank
owns some rows of a parameter, often none, and what torch knows of even shards does not apply: norm,
gathering and checkpoint metadata are this module's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Shard:
    """This rank's rows of one parameter."""

    name: str
    """By the model's own name."""
    parameter: nn.Parameter
    """Rows x the other dimensions: what the optimizer updates; memory of the package's buffers,
    in fp32 unless the parameter is frozen."""
    whole: DTensor
    """The same memory as the package presents it."""
    first_row: int

    @torch.no_grad()
    def fill(self, full: Tensor) -> None:
        """Take this rank's rows of the full tensor."""
        self.parameter.copy_(full.narrow(0, self.first_row, len(self.parameter)))

    @torch.no_grad()
    def gather(self, group: ProcessGroup | None) -> Tensor:
        """The full tensor, in fp32, on every rank.

        Collective over `group`, the ranks that share one copy; None: every rank has all.
        """
        if group is None:
            return self.parameter.detach().float()
        full = torch.zeros(self.whole.shape, dtype=torch.float32, device=self.parameter.device)
        full.narrow(0, self.first_row, len(self.parameter)).copy_(self.parameter)
        # Every row is on one rank and zero on the others: as integers the sum is exact to the bit,
        # and unlike an all-gather it does not ask for equal sizes.
        dist.all_reduce(full.view(torch.int32), group=group)
        return full

    def placed(self, local: Tensor) -> DTensor:
        """A tensor of the shape of `parameter` as the part of a whole that it is, to be saved.

        Of torch's ways to copy it for a save in the background, only `DefaultStager` keeps what
        part it is.
        """
        local = local.detach()
        # A DTensor takes the offset in memory from the tensor that it is made of, and what copies
        # checkpoints for a save in the background then takes it for a tensor with memory.
        tensor = DTensor.from_local(
            torch.empty_like(local[:0]),
            self.whole.device_mesh,
            self.whole.placements,
            run_check=False,
            shape=self.whole.shape,
            stride=self.whole.stride(),
        )
        tensor._local_tensor = local
        chunk = ChunkStorageMetadata(
            torch.Size([self.first_row, *[0] * (local.dim() - 1)]), local.shape
        )
        _describe(tensor, chunk)
        return tensor


def _describe(tensor: DTensor, chunk: ChunkStorageMetadata) -> None:
    """Tell torch.distributed.checkpoint which chunk is here: it assumes even shards otherwise."""
    chunks = [chunk] if chunk.sizes.numel() else []

    def write_items(name: str, tensor: DTensor) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(tensor.to_local())
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, tensor.size()),
            )
            for chunk in chunks
        ]

    local: Any = tensor._local_tensor
    local.__create_chunk_list__ = lambda: chunks
    local.__create_write_items__ = write_items


def shards_of(wrapped: Any) -> Iterator[Shard]:
    """The shards of a model in MegatronFSDP, whichever parameters the model shows at the moment.

    After a forward pass `parameters()` are the gathered ones, and an optimizer over them would
    train nothing.
    """
    for name, owned in wrapped.param_and_grad_buffer.optimizer_named_parameters:
        local = owned._local_tensor.detach()
        # Elements of the flattened parameter; cuts are between rows. Unsharded ones have none.
        elements = getattr(owned, "megatron_fsdp_slice", slice(0, 0))
        yield Shard(
            name,
            nn.Parameter(local, requires_grad=owned.requires_grad),
            owned,
            first_row=elements.start // owned.shape[1:].numel(),
        )


def total_norm(parameters: list[nn.Parameter], group: ProcessGroup | None) -> Tensor:
    """L2 norm of the gradients of this rank's shards and those of the other ranks of `group`.

    Collective. `group` must be the ranks that share one copy: over the copies of hybrid sharding
    too, the norm would be too large by the root of their number. None: every rank has all.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([part for part in gradients if part.numel()])
    if group is None:
        return norm
    # Of no gradients at all the norm is a zero on the CPU.
    squares = norm.square().to(parameters[0].device)
    dist.all_reduce(squares, group=group)
    return squares.sqrt()
