"""Numbers as a person says them."""

from typing import Final

_GIB: Final = 1 << 30


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 3 m 20 s, 5 h 03 m."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / _GIB:.2f} GiB"
