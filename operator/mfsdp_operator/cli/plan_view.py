"""Shows a plan as a table for people."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mfsdp_trainer.config import Engine
from mfsdp_trainer.plan.changes import Change
from mfsdp_trainer.plan.choices import Choice
from mfsdp_trainer.plan.report import Report
from mfsdp_trainer.plan.rows import Row

from .snapshot import printable

_WIDTH = 120
_GIB = 1 << 30
_HOPELESS = ": shorten data.sequenceLength, use a larger GPU or a smaller model"
_COLUMNS = ("weights", "grads", "optim", "activ", "work", "buffers", "peak", "fits", "sent")


def show(name: str, report: Report) -> None:
    """Print the plan to standard output."""
    console = Console(highlight=False, soft_wrap=True)
    for line in _head(name, report):
        console.print(Text(line))
    if not console.is_terminal:
        console.width = _WIDTH  # a file or a pipe has no width of its own
    console.print(_table(report))
    for line in _foot(report):
        console.print(Text(line))


def _head(name: str, report: Report) -> Iterator[str]:
    batch, gpu = report.batch, report.gpu
    frozen = report.parameters - report.trained
    note = f", {_count(frozen)} of them frozen" if frozen else ""
    kind, steps = printable(report.model_type), batch.steps
    total = f"; {steps:,} steps are {_count(steps * batch.tokens)}" if steps else ""
    yield f"{printable(name)}: {kind}, {_count(report.parameters)} parameters{note}"
    yield (
        f"a step: {batch.micro} sequences x {batch.ranks} ranks x {batch.accumulation} "
        f"micro-batches = {batch.sequences:,} sequences of {batch.length:,} = {batch.tokens:,} "
        f"tokens{total}"
    )
    yield (
        f"GiB of each GPU; {printable(gpu.name)} has {_gib(gpu.memory)}, of which tensors can "
        f"have {_gib(gpu.usable)}"
    )


def _table(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("engine and strategy", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in report.rows:
        own = row.choice == report.chosen.choice
        table.add_row(*_cells(row, own=own), style="bold" if own else None)
    return table


def _cells(row: Row, *, own: bool) -> Iterator[str]:
    memory = row.memory
    yield f"{'>' if own else ' '} {_name(row.choice)}"
    gradients = max(memory.gradients, memory.carried)
    yield from map(_gib, (memory.parameters, gradients, memory.optimizer))
    if memory.work is None:
        yield from ("?", "?")
    else:
        yield _gib(memory.work.activations)
        yield _gib(memory.work.peak - memory.work.activations)
    yield _gib(memory.gathered + memory.reducing)
    yield _gib(memory.peak)
    yield "yes" if row.fits else "no"
    yield _gib(row.traffic.total)


def _foot(report: Report) -> Iterator[str]:
    yield from _legend()
    if report.untraced is not None:
        yield f"activations are unknown, and not counted: {printable(report.untraced)}"
    # Equal where the job recomputes them already.
    if (work := report.recomputed.memory.work) and report.recomputed != report.chosen:
        yield (
            f"with training.recompute: full: activ {_gib(work.activations)}, "
            f"peak {_gib(report.recomputed.memory.peak)} ({_name(report.recomputed.choice)})"
        )
    yield _verdict(report)
    yield from (_change(change, report.chosen.choice) for change in report.changes)


def _legend() -> Iterator[str]:
    yield "weights, grads, optim: model states. activ: kept for the backward pass. work: head and"
    yield "loss by chunks, gradients of activations. buffers: weights made whole and gradients on"
    yield "their way. peak: the most at one time, which is less than the sum. sent: GiB by a rank"
    yield "in a step."


def _verdict(report: Report) -> str:
    chosen, least = report.chosen, report.least
    state = "fits" if chosen.fits else "does not fit"
    verdict = f"the job ({_name(chosen.choice)}) {state}: {_gib(chosen.memory.peak)} GiB"
    if least is None:
        help_ = "; what would help:" if report.changes else _HOPELESS
        return f"{verdict}; nor does it under any other engine and strategy{help_}"
    if least.choice == chosen.choice:
        return f"{verdict}; it is the least sharded that does"
    return f"{verdict}; the least sharded that does: {_fields(least.choice)}"


def _change(change: Change, own: Choice) -> str:
    fields = [f"{name}: {value}" for name, value in change.fields.items()]
    if _fields(change.row.choice) != _fields(own):
        fields.append(_fields(change.row.choice))
    return f"  {', '.join(fields)} ({_gib(change.row.memory.peak)} GiB)"


def _fields(choice: Choice) -> str:
    """How a job says so."""
    if choice.engine is Engine.DDP:
        return "no engine (DDP)"
    flag = "useMegatronFSDP" if choice.engine is Engine.MEGATRON_FSDP else "useTorchFSDP2"
    copies = f", dataParallelReplicas: {choice.replicas}" if choice.replicas > 1 else ""
    return f"{flag}: true, dataParallelShardingStrategy: {choice.strategy}{copies}"


def _name(choice: Choice) -> str:
    copies = f" x{choice.replicas}" if choice.replicas > 1 else ""
    engine = choice.engine.value
    return engine if choice.engine is Engine.DDP else f"{engine} {choice.strategy}{copies}"


def _gib(size: int) -> str:
    digits = 0 if size >= 100 * _GIB or not size else 1 if size >= _GIB else 3
    return f"{size / _GIB:,.{digits}f}"


def _count(number: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)
