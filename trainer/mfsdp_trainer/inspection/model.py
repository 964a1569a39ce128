"""From a run's configuration to the facts of its model."""

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel

from mfsdp_trainer.config import Engine, TrainerConfig
from mfsdp_trainer.config.data import Packing, TokenizerKind
from mfsdp_trainer.config.training import Recompute
from mfsdp_trainer.data.tokenizer import byte_tokenizer, load_tokenizer
from mfsdp_trainer.data.vocabulary import Vocabulary
from mfsdp_trainer.errors import TrainerError, said
from mfsdp_trainer.models.architecture import build_meta, is_tied, read_config
from mfsdp_trainer.models.fit import require_fit
from mfsdp_trainer.models.freeze import freeze
from mfsdp_trainer.plan.facts import Compute, ModelFacts, WorkCase
from mfsdp_trainer.plan.memory import compute_of

from .parameters import units
from .work import trace


def inspect(config: TrainerConfig) -> ModelFacts:
    """Look at the model. Raises ConfigError and DataError as a run would."""
    settings = read_config(config.model, _vocabulary(config))
    require_fit(settings, config.data.sequence_length)
    model = _model(config, settings)
    cases, untraced = _work(config, settings)
    return ModelFacts(
        model_type=settings.model_type,
        tied=is_tied(model),
        units=units(model),
        work=cases,
        untraced=untraced,
    )


def _model(config: TrainerConfig, settings: PreTrainedConfig) -> PreTrainedModel:
    """As a run has it: on the meta device, with what is frozen frozen, and with adapters."""
    model = build_meta(settings, config.performance.attention)
    if config.model.lora is None:
        freeze(model, config.training.freeze)
        return model
    # Late: peft takes a second to import.
    from mfsdp_trainer.models.lora import add_adapters

    add_adapters(model, config.model.lora)
    return model


def _vocabulary(config: TrainerConfig) -> Vocabulary:
    """What the tokenizer says of its size, where that is not the model's to say."""
    chosen, model = config.data.tokenizer, config.model
    if chosen.kind is TokenizerKind.BYTE:
        return byte_tokenizer().vocabulary
    if chosen.kind is TokenizerKind.BPE:
        return Vocabulary(size=chosen.vocab_size, end=0, digest="")
    if model.path is not None or "vocab_size" in (model.config or {}):
        return Vocabulary(size=1, end=0, digest="")
    return load_tokenizer(Path(chosen.path or ""), "data.tokenizer.path").vocabulary


def _work(
    config: TrainerConfig, settings: PreTrainedConfig
) -> tuple[tuple[WorkCase, ...], str | None]:
    """All cases, or none and why: some models look at the values of their tensors."""
    try:
        return tuple(_traced(config, settings)), None
    except TrainerError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model's code raises without values
        return (), said(error)


def _traced(config: TrainerConfig, settings: PreTrainedConfig) -> Iterator[WorkCase]:
    for batch, compute, recompute in _cases(config):
        yield WorkCase(
            micro_batch=batch,
            compute=compute,
            recompute=recompute,
            work=trace(
                _model(config, settings),
                batch=batch,
                length=config.data.sequence_length,
                compute=compute,
                recompute=recompute,
                packed=config.data.packing is Packing.DOCUMENTS,
            ),
        )


def _cases(config: TrainerConfig) -> list[tuple[int, Compute, Recompute]]:
    """The job as it is, and the changes to it that could make it fit."""
    batch, precision = config.training.micro_batch_size, config.training.precision
    found = [
        (size, compute_of(engine, precision), recompute)
        for size in (batch, 1)
        for recompute in (config.training.recompute, Recompute.FULL)
        for engine in (Engine.TORCH_FSDP2, Engine.DDP)
    ]
    return list(dict.fromkeys(found))
