"""The process does not limp on when a part of it breaks: Kubernetes starts a whole one."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType

import pytest
from kubernetes.aio import client

from mfsdp_operator.kube import Kube
from mfsdp_operator.limiter import Limiter
from mfsdp_operator.runtime import Runtime
from mfsdp_operator.settings import Settings


async def breaks() -> None:
    """A part of the operator with a bug in it."""
    raise RuntimeError("bug")


async def ends() -> None:
    """A part of the operator that should have gone on for ever."""


@pytest.mark.parametrize(
    ("part", "trouble"), [(breaks, "part: RuntimeError: bug"), (ends, "part has ended")]
)
async def test_a_broken_part_ends_the_process(
    part: Callable[[], Coroutine[None, None, None]], trouble: str
) -> None:
    told = asyncio.Event()

    def listen(_number: int, _frame: FrameType | None) -> None:
        told.set()

    before = signal.signal(signal.SIGTERM, listen)
    try:
        kube = Kube(client.ApiClient(client.Configuration()), Limiter(1, 1))
        runtime = Runtime(kube, Settings(trainer_image="x"))
        runtime._spawn("part", part())
        async with asyncio.timeout(10):
            await told.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert runtime.trouble == trouble
    assert runtime._not_ready() == trouble
    await runtime.stop()
