"""What every process of a gang needs: imported once, in the server that they are forked from."""

import megatron.core.distributed.fsdp.src.megatron_fsdp  # noqa: F401
import transformers.models.auto.modeling_auto  # noqa: F401

import mfsdp_trainer.run  # noqa: F401
