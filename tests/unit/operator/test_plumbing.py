"""Queue, timers, stores and limiter: what everything else relies on."""

import asyncio
import time
from dataclasses import replace

from tests.unit.operator.views import UID, pod

from mfsdp_operator.informer import Store
from mfsdp_operator.jobs import Jobs, Key
from mfsdp_operator.limiter import Limiter
from mfsdp_operator.objects import PodView
from mfsdp_operator.queue import FIRST_DELAY, LAST_DELAY, WorkQueue
from mfsdp_operator.timers import Timers


def queue() -> tuple[WorkQueue[str], Timers[str]]:
    """A queue and the timers that feed it."""
    timers: Timers[str] = Timers(lambda key: made.add(key))
    made: WorkQueue[str] = WorkQueue(timers)
    return made, timers


async def test_a_key_waits_once() -> None:
    work, _ = queue()
    work.add("a")
    work.add("a")
    work.add("b")
    assert [await work.get(), await work.get()] == ["a", "b"]
    assert len(work) == 0


async def test_a_key_is_worked_on_by_one_at_a_time() -> None:
    work, _ = queue()
    work.add("a")
    await work.get()
    work.add("a")
    second = asyncio.ensure_future(work.get())
    work.add("b")
    assert await second == "b"
    work.done("a")
    assert await work.get() == "a"


async def test_failures_come_back_later_and_later() -> None:
    work, timers = queue()
    delays = []
    for attempt in range(12):
        work.add("a")
        await work.get()
        delays.append(work.failed("a", now=1000.0 * attempt))
        timers.fire_due(1000.0 * attempt + delays[-1])
    assert FIRST_DELAY * 0.8 <= delays[0] <= FIRST_DELAY * 1.2
    assert delays[3] > delays[0]
    assert max(delays) <= LAST_DELAY * 1.2
    work.done(await work.get())
    work.add("a")
    await work.get()
    assert work.failed("a", now=0.0) <= FIRST_DELAY * 1.2


def test_a_key_has_one_timer_the_earliest() -> None:
    fired: list[str] = []
    timers: Timers[str] = Timers(fired.append)
    timers.set("a", 20.0)
    timers.set("a", 10.0)
    timers.set("a", 30.0)
    timers.set("b", 15.0)
    timers.set("c", 1.0)
    timers.cancel("c")
    timers.fire_due(9.9)
    assert fired == []
    timers.fire_due(40.0)
    assert fired == ["a", "b"]
    assert len(timers) == 0


async def test_timers_fire_while_they_run() -> None:
    fired = asyncio.Event()
    timers: Timers[str] = Timers(lambda _: fired.set())
    running = asyncio.create_task(timers.run())
    timers.set("later", time.time() + 3600)
    timers.set("now", time.time())
    async with asyncio.timeout(10):
        await fired.wait()
    running.cancel()


def store() -> tuple[Store[PodView], list[str]]:
    """A store, and the uids of what it said had changed."""
    changed: list[str] = []
    return Store(lambda view: changed.append(view.uid)), changed


def at(view: PodView, version: int) -> PodView:
    """The same pod at another resourceVersion."""
    return replace(view, resource_version=str(version))


def test_older_news_is_passed_over() -> None:
    pods, changed = store()
    pods.put(at(pod(0), 10))
    pods.put(at(pod(0, phase="Pending"), 9))
    assert [p.phase for p in pods.of(UID)] == [""]
    assert len(changed) == 1


def test_a_write_that_answers_late_raises_nobody_from_the_dead() -> None:
    pods, _ = store()
    pods.put(at(pod(0), 10))
    pods.remove(pod(0).uid, 12)
    pods.put(at(pod(0), 11))
    assert pods.of(UID) == ()


def test_a_relist_takes_out_what_went_unseen_and_keeps_what_is_newer() -> None:
    pods, changed = store()
    pods.put(at(pod(0), 10))
    pods.put(at(pod(1), 30))
    changed.clear()
    pods.replace([], 20, None)
    assert [p.rank for p in pods.of(UID)] == [1]
    assert changed == [pod(0).uid]


def test_a_relist_of_one_namespace_leaves_the_others() -> None:
    pods, _ = store()
    pods.put(at(pod(0), 10))
    pods.replace([], 20, "another")
    assert len(pods.of(UID)) == 1


def manifest(version: int, uid: str = UID) -> dict[str, dict[str, object]]:
    """A job at a resourceVersion."""
    meta = {"namespace": "team", "name": "llama", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**meta, "managedFields": [1]}}


KEY = Key("team", "llama")


def test_jobs_keep_the_newest_and_find_it_by_uid() -> None:
    jobs = Jobs()
    assert jobs.put(manifest(5))
    assert not jobs.put(manifest(4))
    assert jobs.key_by_uid(UID) == KEY
    held = jobs.get(KEY)
    assert held is not None
    assert held["metadata"]["resourceVersion"] == "5"
    assert "managedFields" not in held["metadata"]


def test_a_new_job_under_an_old_name() -> None:
    jobs = Jobs()
    jobs.put(manifest(5))
    jobs.put(manifest(9, uid="new"))
    jobs.remove(KEY, UID)  # the DELETED of the old one comes late
    assert jobs.key_by_uid("new") == KEY
    assert jobs.key_by_uid(UID) is None


def test_a_list_of_jobs_purges_phantoms() -> None:
    jobs = Jobs()
    jobs.put(manifest(5))
    assert jobs.replace([], 4, None) == []
    assert jobs.replace([], 6, None) == [KEY]
    assert len(jobs) == 0
    assert jobs.replace([manifest(7)], 8, None) == [KEY]


async def test_the_limiter_lets_a_burst_through_and_holds_the_rest() -> None:
    limiter = Limiter(rate=0.001, burst=3)
    async with asyncio.timeout(10):
        for _ in range(3):
            await limiter.wait()
    fourth = asyncio.ensure_future(limiter.wait())
    await asyncio.sleep(0)
    assert not fourth.done()
    fourth.cancel()
