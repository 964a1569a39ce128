"""Which bed a command means: its name, its slot (subnets and ports) and its number of nodes."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

from . import network
from .settings import RUN_ROOT, SLOTS, Bed, cache_root
from .shell import BedError

DEFAULT_SIZE = 2
MOST_NODES = 16
NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


def remembered(folder: Path) -> dict[str, Any]:
    """Return what `claim` wrote into a bed's folder, or nothing."""
    try:
        known = json.loads((folder / "bed.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def claim(bed: Bed) -> None:
    """Write down slot and size, among the lasting files and among those that a reboot removes."""
    for folder in (bed.state, bed.run):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"slot": bed.slot, "size": bed.size, "state": str(bed.state)})
        (folder / "bed.json").write_text(text)


def _slots_of_others(name: str) -> set[int]:
    """Return the slots of all other beds: those of this cache, and those that run from another."""
    folders = [*cache_root().glob("instances/*"), *RUN_ROOT.glob("*/")]
    others = [remembered(folder) for folder in folders if folder.name != name]
    return {int(known["slot"]) for known in others if known}


def _free_slot(name: str, preferred: int) -> int:
    others, routed = _slots_of_others(name), network.taken_prefixes()
    for slot in chain([preferred], range(SLOTS)):
        if slot not in others and Bed(name, slot, 1).prefix not in routed:
            return slot
    raise BedError(
        f"all {SLOTS} address ranges of the test bed (10.220.0.0/16 and following) are in use on "
        "this machine: take another bed down, or free one of these ranges"
    )


def find(name: str) -> Bed | None:
    """Return a bed that was brought up before, or None."""
    unknown = Bed(name, 0, 1)
    known = remembered(unknown.run) or remembered(unknown.state)
    return Bed(name, known["slot"], known["size"]) if known else None


def check_name(name: str) -> None:
    """Raise when a bed cannot have this name: it becomes part of paths and of a control group."""
    if not NAME.fullmatch(name):
        raise BedError(
            f"--name {name}: use 1 to 20 lower-case letters, digits and hyphens, a letter first"
        )


def choose(name: str, size: int | None) -> Bed:
    """Return the bed to bring up: as it was before, and with `size` nodes if given."""
    if size is not None and not 1 <= size <= MOST_NODES:
        raise BedError(f"--nodes {size}: use 1 to {MOST_NODES}")
    known = find(name)
    running = known is not None and known.run.exists()
    if known and running:
        if size is not None and size < known.size:
            raise BedError(f"--nodes {size}: {known.size} are up; nodes go only with `down`")
        return Bed(name, known.slot, size or known.size)
    slot = _free_slot(name, known.slot if known else 0)
    return Bed(name, slot, size or DEFAULT_SIZE)
