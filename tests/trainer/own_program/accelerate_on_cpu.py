"""Runs a script with accelerate's FSDP2 on CPUs and gloo: accelerate_on_cpu.py SCRIPT ARGUMENTS.

accelerate shards where it sees GPUs, and elsewhere ignores FSDP without a word. Here it is told
that the CPUs are GPUs; all that it then does with the model, its shards and checkpoints, is
its own. Only tests use it, and with a GPU it refuses: there the real thing is to be tested.
"""

import os
import runpy
import sys

import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from mfsdp_trainer.gloo import use_one_worker


def _as_on_gpus(*_: object, **__: object) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


def main() -> None:
    if torch.cuda.is_available():
        raise RuntimeError("the CPU shim is for machines without a GPU: test on the GPU instead")
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = _as_on_gpus
    use_one_worker()
    dist.init_process_group("gloo")
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
