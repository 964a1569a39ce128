"""A local server that speaks S3, in an environment of its own (requirements/s3.txt)."""

import hashlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PINS = Path(__file__).parents[2] / "requirements" / "s3.txt"
_DEADLINE = 60.0


def _python() -> Path:
    """The interpreter that hack/venv.sh made for the server."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mfsdp"
    python = cache / f"s3-{hashlib.sha256(_PINS.read_bytes()).hexdigest()[:16]}" / "bin" / "python"
    assert python.exists(), f"{python} is missing: remove .venv and run hack/venv.sh"
    return python


@contextmanager
def s3_server(log: Path, bucket: str) -> Iterator[str]:
    """A server with one empty bucket; the environment names it until the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_python()), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _make_bucket(endpoint, bucket, log)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT", endpoint)
            patch.setenv("AWS_ALLOW_HTTP", "true")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            yield endpoint
    finally:
        server.terminate()
        server.wait(10)


def _make_bucket(endpoint: str, bucket: str, log: Path) -> None:
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.URLError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"waited {_DEADLINE:.0f} s for the S3 server: {log.read_text()}")
