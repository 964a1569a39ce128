"""Two runs never share a directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from mfsdp_trainer.claim import LOCK, ClaimedError, claimed

_HOLD = (
    "import pathlib, sys\n"
    "from mfsdp_trainer.claim import claimed\n"
    "with claimed(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_the_second_is_told_who_has_it_and_a_killed_holder_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ClaimedError) as caught, claimed(tmp_path):
            pass
        assert f"{tmp_path} is in use by another run" in str(caught.value)
        assert f"process {holder.pid}" in str(caught.value)
        assert f"delete {tmp_path / LOCK}" in str(caught.value)
    finally:
        holder.kill()
        holder.communicate()
    with claimed(tmp_path), pytest.raises(ClaimedError), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass
