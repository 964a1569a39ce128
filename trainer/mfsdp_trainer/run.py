"""One run from its configuration to its export: puts the parts together, in order."""

import hashlib
import json
import logging
from functools import partial

import torch
from pydantic import ValidationError
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from .beside import beside_checkpoints
from .checkpoint import Checkpoints, Position
from .checkpoint.manifest import Identity
from .checkpoint.opened import open_store
from .checkpoint.sole import sole_run
from .checkpoint.store import Store
from .checkpoint.warm import warm_start
from .config import TrainerConfig
from .config.batch import steps_until
from .config.data import Packing
from .config.problems import explain
from .contract import Phase
from .data.batches import MicroBatch, Share, TrainingData, held_out_batches
from .data.prepare import Prepared, saved_tokenizer
from .data.prepared import prepared
from .determinism import require_determinism
from .engines import Engine, Setup, build_engine
from .engines.registry import require_engine
from .errors import ConfigError
from .export.trained import export_trained
from .loop import Loop
from .models.architecture import build_meta, computation, parameter_count, read_config
from .models.fit import require_fit
from .models.freeze import frozen_names
from .models.trained import Trained, choose_trained
from .observe.facts import run_facts
from .observe.meter import Meter, told
from .observe.profiling import Profiler
from .observe.speed import Scale
from .observe.timeline import Part
from .observe.trackers import Journal
from .observe.trackers.build import open_journal
from .optim import make_optimizer, optimizer_state
from .packing import require_attention, require_separate_documents
from .reporting import Reporter
from .words import counted
from .world import World

_log = logging.getLogger(__name__)


def run(config: TrainerConfig, reporter: Reporter) -> None:
    """Join the gang and do the whole run. Raises TrainerError on every rank alike."""
    require_engine(config.resolve().engine, gpu=config.gpus_per_node > 0)
    if config.gpus_per_node and not torch.cuda.is_available():
        raise ConfigError(
            f"gpusPerNode is {config.gpus_per_node}, but torch sees no GPU in this container: "
            "check gpuResource and the node's driver, or set gpusPerNode to 0 for the CPU"
        )
    if config.training.deterministic:
        require_determinism()
    reporter.phase(Phase.RENDEZVOUS)
    world = World.start(gpu=config.gpus_per_node > 0)
    if world.size != config.world_size:
        raise ConfigError(
            f"nodes x procsPerNode is {config.world_size}, but {world.size} processes were "
            "started: start as many as the configuration says"
        )
    train(config, world, reporter)
    world.leave()


def train(config: TrainerConfig, world: World, reporter: Reporter) -> Position:
    """The run inside a world that exists: build, resume, train, export."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    reporter.phase(Phase.LOADING)
    store = world.together(lambda: open_store(config.checkpoint.path))
    with sole_run(store, world):
        loop, model_config = build(config, world, reporter, store)
        with told(loop.meter):
            reporter.part(Part.RESTORE)
            start = start_of(loop, config.training.epochs)
            _require_packing(loop, model_config)
            loop.meter.begin(start.step)
            end = loop.run(start)
            if config.checkpoint.export:
                _export(loop, model_config)
    reporter.phase(Phase.DONE)
    return end


def _require_packing(loop: Loop, model_config: PreTrainedConfig) -> None:
    if loop.config.data.packing is not Packing.DOCUMENTS:
        return
    training = loop.config.training
    require_separate_documents(
        loop.engine,
        model_config,
        loop.world,
        training.precision,
        size=training.micro_batch_size,
        length=loop.config.data.sequence_length,
    )


def start_of(loop: Loop, epochs: float | None = None) -> Position:
    """Where a run begins: behind its newest checkpoint, or with another's weights, or its own.

    Loads what that takes. Collective. `epochs` is the length where that is how it was given. Raises
    ConfigError if the checkpoint is past the end, or epochs would end elsewhere than they shall.
    """
    start, steps = loop.checkpoints.resume(loop.engine), loop.config.training.total_steps
    if start is None:
        if (other := loop.config.checkpoint.warm_start) is not None:
            name = warm_start(other, loop.engine, loop.checkpoints.identity, loop.world)
            _say(loop.world, "starts with the weights of %s", name)
        return Position(step=0, consumed=0)
    place = f"checkpoint.path {loop.config.checkpoint.path} holds step {start.step}"
    if epochs is not None and not loop.config.training.passes(start.step, start.consumed):
        raise ConfigError(
            f"training.epochs: {place} after {start.consumed} sequences, which other global "
            "batches led to: go on with the globalBatchSize and batchRamp it was trained with, or "
            "set training.steps in place of epochs"
        )
    if start.step > steps:
        field = "steps" if epochs is None else "epochs"
        length = f"{steps}" if epochs is None else f"{epochs:g}, which are {steps} steps"
        raise ConfigError(
            f"training.{field} is {length}, but {place} of a longer run: raise {field}, or choose "
            "another path"
        )
    loop.reporter.progress(resumed_from_step=start.step, checkpoint_step=start.step)
    _say(loop.world, "goes on from the checkpoint of step %d", start.step)
    return start


def build(
    config: TrainerConfig, world: World, reporter: Reporter, store: Store | None = None
) -> tuple[Loop, PreTrainedConfig]:
    """Data, model, engine and checkpoints, ready to train, and what the model is. Collective."""
    store = store or world.together(lambda: open_store(config.checkpoint.path))
    ready = prepared(config, world)
    reporter.part(Part.MODEL)
    model_config = world.together(lambda: read_config(config.model, ready.vocabulary))
    world.together(lambda: require_fit(model_config, config.data.sequence_length))
    attention = config.performance.attention
    trained = world.together(lambda: choose_trained(config, build_meta(model_config, attention)))
    if config.data.packing is Packing.DOCUMENTS:
        world.together(lambda: require_attention(trained.model))
    identity = _identity(config, ready, trained)
    scale = Scale.of(config, trained.model, world.size)
    facts = run_facts(config, trained.model)
    engine = _engine(config, world, trained)
    checkpoints = Checkpoints(config.checkpoint, store, world, identity)
    data = world.together(lambda: _training_data(config, world, ready))
    config = _settled(config, world, len(data))
    _warn_of_short_ramp(config, world)
    journal = world.together(lambda: open_journal(config) if world.is_first else Journal({}))
    loop = world.together(
        lambda: Loop(
            config=config,
            world=world,
            engine=engine,
            data=data,
            held_out=_held_out(config, world, ready),
            checkpoints=checkpoints,
            reporter=reporter,
            meter=Meter(
                reporter,
                journal,
                scale,
                facts,
                first=world.is_first,
                every=config.logging.every_steps,
                steps=config.training.total_steps,
                bad_records=ready.bad_records,
            ),
            profiler=Profiler(
                reporter, beside_checkpoints(config, "profile"), config.logging.profile
            ),
        )
    )
    reporter.progress(total_steps=config.training.total_steps, bad_records=ready.bad_records)
    return loop, model_config


def _engine(config: TrainerConfig, world: World, trained: Trained) -> Engine:
    model, sharding = trained.model, config.resolve()
    _say(
        world,
        "%s, %.2f M parameters of %.2f M, %s %s over %s, %s a step",
        model.config.model_type,
        parameter_count(model, trained_only=True) / 1e6,
        parameter_count(model) / 1e6,
        sharding.engine,
        sharding.strategy,
        counted(world.size, "rank"),
        counted(sharding.micro_batches, "micro-batch", "micro-batches"),
    )
    return build_engine(
        Setup(
            world=world,
            sharding=sharding,
            precision=config.training.precision,
            performance=config.performance,
            recompute=config.training.recompute,
            model=model,
            fill=lambda target: world.together(lambda: trained.weights.fill(target, world.device)),
            optimizer=partial(make_optimizer, config.training),
            saves_frozen=not trained.base,
        )
    )


def _identity(config: TrainerConfig, ready: Prepared, trained: Trained) -> Identity:
    """What checkpoints of this run go with."""
    model, lora = trained.model, config.model.lora
    shapes = sorted((name, list(parameter.shape)) for name, parameter in model.named_parameters())
    order = [ready.digest, config.data.sequence_length, config.training.seed]
    return Identity(
        parameters=_digest(shapes),
        architecture=_digest([*computation(model.config), *([lora.alpha] if lora else [])]),
        tokenizer=ready.vocabulary.digest,
        order=_digest(order),
        optimizer=optimizer_state(config.training),
        frozen=_digest(frozen) if (frozen := frozen_names(model)) else "",
        base=trained.base,
    )


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _training_data(config: TrainerConfig, world: World, ready: Prepared) -> TrainingData:
    training = config.training
    share = Share(world.rank, world.size, training.micro_batch_size)
    parts, order = ready.training(config.data, training.seed)
    return TrainingData(parts, order, share)


def _settled(config: TrainerConfig, world: World, sequences: int) -> TrainerConfig:
    """The configuration with its length in steps, where it was in epochs of `sequences`."""
    epochs = config.training.epochs
    if epochs is None:
        return config
    try:
        training = config.training.settled(sequences)
    except ValidationError as error:
        problem = next(text for _, text in explain(error, TrainerConfig))
        raise ConfigError(
            f"training.epochs {epochs:g} of {sequences} sequences: {problem}"
        ) from error
    steps, profile = training.total_steps, config.logging.profile
    if profile is not None and profile.last_step > steps:
        raise ConfigError(
            f"logging.profile ends with step {profile.last_step}, but training.epochs {epochs:g} "
            f"of {sequences} sequences are {steps} steps: lower startStep"
        )
    _say(world, "%g epochs of %d sequences are %d steps", epochs, sequences, steps)
    return config.model_copy(update={"training": training})


def _warn_of_short_ramp(config: TrainerConfig, world: World) -> None:
    """Say where the batch never grows to its full size."""
    training = config.training
    ramp, steps = training.batch_ramp, training.total_steps
    if ramp is None or not world.is_first:
        return
    needed = steps_until(training.global_batch_size, ramp, ramp.sequences)
    if needed >= steps:
        _log.warning(
            "training.batchRamp grows to globalBatchSize after step %d, and the run ends at step "
            "%d: lower batchRamp.sequences if it shall get there",
            needed,
            steps,
        )


def _held_out(config: TrainerConfig, world: World, ready: Prepared) -> list[MicroBatch]:
    batches = held_out_batches(
        ready.held_out(config.data),
        config.training.eval_sequences,
        rank=world.rank,
        ranks=world.size,
        size=config.training.micro_batch_size,
    )
    if not batches and config.checkpoint.keep_best:
        raise ConfigError(
            "checkpoint.keepBest goes by the loss on held-out text, but the held-out documents do "
            "not fill one sequence: raise data.validationFraction, or set keepBest to 0"
        )
    if not batches:
        _say(world, "no evaluation: the held-out documents do not fill one sequence")
    return batches


def _export(loop: Loop, model_config: PreTrainedConfig) -> None:
    loop.reporter.phase(Phase.EXPORTING)
    target = f"{loop.config.checkpoint.path.rstrip('/')}/export"
    tokenizer = partial(_tokenizer, loop.config)
    export_trained(
        loop.engine,
        build_meta(model_config),
        loop.config.model,
        tokenizer,
        target,
        loop.world,
        chats=loop.config.data.chats,
    )
    loop.meter.exported(target)


def _tokenizer(config: TrainerConfig) -> PreTrainedTokenizerBase:
    return saved_tokenizer(config).transformers


def _say(world: World, message: str, *values: object) -> None:
    if world.is_first:
        _log.info(message, *values)
