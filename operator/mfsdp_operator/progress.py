"""Asks running trainers how far they are: GET /progress of node rank 0.

What answers was written by others, and an address may have passed to another pod: the answer has to
name this job and attempt, redirects and proxies are not followed, sizes and times are bounded, and
numbers are finite. A trainer that cannot be reached is only that; nothing is restarted for it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from pydantic import ValidationError

from mfsdp_trainer.contract import PROGRESS_MAX_BYTES, Progress

from .api.status import TrainingStatus
from .clock import to_rfc3339
from .jobs import Key
from .reconcile.training import merged
from .timers import Timers

_log = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=2)
_IN_FLIGHT = 64
_SLOWEST = 15.0
_POLLS_A_SECOND = 100
_PATIENCE = 3
"""Failed polls in a row before it is said that progress is unknown."""
_MOST_STEPS = 2**53


class ProgressError(Exception):
    """No usable answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The trainer to ask."""

    uid: str
    attempt: int
    ip: str
    port: int


@dataclass(slots=True)
class Followed:
    """A target and what it has answered."""

    target: Target
    delay: float
    training: TrainingStatus | None = None
    told: TrainingStatus | None = None
    problem: str = ""
    failures: int = 0
    polling: bool = field(default=False)


class ProgressPoller:
    """Follows the targets that it is given, and calls `changed(key)` when there is news."""

    def __init__(self, changed: Callable[[Key], None], interval: float, tell_every: float) -> None:
        self._changed = changed
        self._interval = interval
        self._tell_every = tell_every
        self._followed: dict[Key, Followed] = {}
        self._timers: Timers[Key] = Timers(self._start)
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def follow(self, key: Key, target: Target | None) -> None:
        """Ask this target from now on; None: ask nobody."""
        known = self._followed.get(key)
        if target is None:
            self._followed.pop(key, None)
            self._timers.cancel(key)
        elif known is None or known.target != target:
            self._followed[key] = Followed(target, self._interval)
            self._timers.set(key, time.time() + self._interval / 2)

    def known(self, key: Key, attempt: int) -> tuple[TrainingStatus | None, str]:
        """The newest answer of the attempt, and why there is none lately."""
        followed = self._followed.get(key)
        if followed is None or followed.target.attempt != attempt:
            return None, ""
        return followed.training, followed.problem

    async def run(self) -> None:
        """Poll for ever."""
        connector = aiohttp.TCPConnector(limit=_IN_FLIGHT, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
        ) as self._session:
            await self._timers.run()

    def _start(self, key: Key) -> None:
        followed = self._followed.get(key)
        if followed is None or followed.polling:
            return
        followed.polling = True
        task = asyncio.get_running_loop().create_task(self._poll(key, followed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, key: Key, followed: Followed) -> None:
        try:
            async with self._in_flight:
                answer = await ask(self._client(), followed.target)
        except ProgressError as error:
            news = _failed(followed, str(error))
        else:
            news = self._answered(followed, answer)
        finally:
            followed.polling = False
        if self._followed.get(key) is followed:
            crowd = len(self._followed) / _POLLS_A_SECOND
            self._timers.set(key, time.time() + max(followed.delay, crowd))
            if news:
                self._changed(key)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise AssertionError("polls begin in run()")
        return self._session

    def _answered(self, followed: Followed, answer: Progress) -> bool:
        """Take an answer. Whether it is worth telling now."""
        training = training_status(answer, time.time())
        before, followed.training = followed.training, training
        moved = before is None or before.step != training.step or before.phase != training.phase
        followed.delay = self._interval if moved else min(followed.delay * 1.5, _SLOWEST)
        recovered, followed.problem, followed.failures = bool(followed.problem), "", 0
        if merged(followed.told, training, self._tell_every) is training or recovered:
            followed.told = training
            return True
        return False


def _failed(followed: Followed, problem: str) -> bool:
    followed.failures += 1
    followed.delay = min(followed.delay * 2, _SLOWEST)
    if followed.failures < _PATIENCE or followed.problem:
        return False
    followed.problem = problem
    return True


async def ask(session: aiohttp.ClientSession, target: Target) -> Progress:
    """The trainer's answer. Raises ProgressError."""
    host = f"[{target.ip}]" if ":" in target.ip else target.ip
    url = f"http://{host}:{target.port}/progress"
    try:
        async with session.get(url, allow_redirects=False, timeout=_TIMEOUT) as response:
            if response.status != 200:
                raise ProgressError(f"the trainer answered with HTTP status {response.status}")
            body = await response.content.read(PROGRESS_MAX_BYTES + 1)
            while len(body) <= PROGRESS_MAX_BYTES and not response.content.at_eof():
                body += await response.content.read(PROGRESS_MAX_BYTES + 1 - len(body))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProgressError(f"the trainer cannot be reached ({type(error).__name__})") from error
    return checked(body, target)


def checked(body: bytes, target: Target) -> Progress:
    """An answer that is what it should be. Raises ProgressError."""
    if len(body) > PROGRESS_MAX_BYTES:
        raise ProgressError("the trainer's answer is too long")
    try:
        answer = Progress.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise ProgressError("the trainer's answer is not what /progress answers") from error
    if (answer.job_uid, answer.attempt) != (target.uid, target.attempt):
        raise ProgressError("another pod answers at the trainer's address")
    numbers = [value for value in answer.model_dump().values() if isinstance(value, int | float)]
    if not all(math.isfinite(n) and abs(n) <= _MOST_STEPS for n in numbers):
        raise ProgressError("the trainer's answer has numbers that are out of range")
    return answer


def training_status(answer: Progress, now: float) -> TrainingStatus:
    """The answer in the form of `status.training`."""
    return TrainingStatus(
        step=answer.step,
        total_steps=answer.total_steps,
        phase=answer.phase.value,
        loss=_rounded(answer.loss, 4),
        eval_loss=_rounded(answer.eval_loss, 4),
        tokens_per_second=_rounded(answer.tokens_per_second, 0),
        mfu="" if answer.mfu is None else f"{answer.mfu:.1%}",
        eta_seconds=None if answer.eta_seconds is None else max(round(answer.eta_seconds), 0),
        resumed_from_step=answer.resumed_from_step,
        checkpoint_step=answer.checkpoint_step,
        updated_at=to_rfc3339(now),
    )


def _rounded(number: float | None, digits: int) -> str:
    return "" if number is None else f"{number:.{digits}f}"
