"""What the kernel says of processes: parents, children, zombies."""

from pathlib import Path


def _stat(directory: Path) -> tuple[str, int] | None:
    """State letter and parent of a process."""
    try:
        text = (directory / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def children(pid: int) -> dict[int, str]:
    """State letter of each child of a process."""
    stats = ((int(d.name), _stat(d)) for d in Path("/proc").iterdir() if d.name.isdigit())
    return {child: stat[0] for child, stat in stats if stat is not None and stat[1] == pid}


def alive(pid: int) -> bool:
    """Whether the process runs, which a zombie does not."""
    stat = _stat(Path("/proc") / str(pid))
    return stat is not None and stat[0] != "Z"
