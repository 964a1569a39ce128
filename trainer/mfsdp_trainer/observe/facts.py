"""What a run is, in the words of its trackers: the first record of every attempt."""

import torch
from transformers import PreTrainedModel

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.models.architecture import parameter_count

from .trackers.record import Value


def run_facts(config: TrainerConfig, model: PreTrainedModel) -> dict[str, Value]:
    """Model, batch, sharding and devices; nothing that could be a secret."""
    sharding, training = config.resolve(), config.training
    return {
        "model_type": model.config.model_type,
        "parameters": parameter_count(model),
        "engine": str(sharding.engine),
        "strategy": str(sharding.strategy),
        "world_size": sharding.world_size,
        "nodes": config.nodes,
        "device": torch.cuda.get_device_name() if config.gpus_per_node else "cpu",
        "precision": str(training.precision),
        "global_batch_size": training.global_batch_size,
        "micro_batch_size": training.micro_batch_size,
        "micro_batches": sharding.micro_batches,
        "sequence_length": config.data.sequence_length,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
    }
