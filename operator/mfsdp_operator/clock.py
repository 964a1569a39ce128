"""Times as the API writes them: RFC 3339 in UTC, whole seconds. Inside, a time is Unix seconds."""

from datetime import UTC, datetime


def to_rfc3339(seconds: float) -> str:
    """Unix seconds as the API server writes a time; fractions are cut off."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str | None) -> float | None:
    """The other way; None for what is absent or no time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
