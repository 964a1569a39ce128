"""Puts the operator together, inside kopf's event loop: stores, informers, queue and workers."""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Coroutine
from typing import Any

from .api.names import LABEL_JOB_UID, PLURAL
from .informer import Informer, Store
from .jobs import Jobs, Key, key_of
from .kube import CORE, JOBS, Kube, KubeError
from .limiter import Limiter
from .objects import PodView, ServiceView, pod_view, service_view
from .probes import Probes
from .progress import ProgressPoller
from .queue import WorkQueue
from .reconcile import Policy
from .reconciler import Reconciler
from .settings import Settings
from .timers import Timers

_log = logging.getLogger(__name__)


class Runtime:
    """The running operator. `start` it once, feed it job events, `stop` it."""

    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._jobs = Jobs()
        self._timers: Timers[Key] = Timers(lambda key: self._queue.add(key))
        self._queue: WorkQueue[Key] = WorkQueue(self._timers)
        self._pods: Store[PodView] = Store(self._child_changed)
        self._services: Store[ServiceView] = Store(self._child_changed)
        self._reconciler = Reconciler(
            kube, self._jobs, self._pods, self._services, self._queue, policy_of(settings)
        )
        self._reconciler.progress = self._progress = ProgressPoller(
            self._queue.add, settings.poll_interval, settings.progress_interval
        )
        self._informers = [*self._make_informers()]
        self._tasks: list[asyncio.Task[None]] = []
        self._probes = Probes(settings.http_port, lambda: self.trouble, self._not_ready)
        self.trouble = ""
        """Why the operator cannot go on; empty while it can."""
        self.server_version = (0, 0)
        self.leading = asyncio.Event()
        """The gate of the workers: everything else runs before it opens."""

    @classmethod
    async def start(cls, settings: Settings) -> "Runtime":
        """Connect, wait for the CRD, and start everything."""
        kube = await Kube.connect(Limiter(settings.write_rate, settings.write_burst))
        runtime = cls(kube, settings)
        if settings.http_port:
            await runtime._probes.start()
        await runtime._wait_for_api()
        runtime.server_version = await kube.server_version()
        runtime._spawn("timers", runtime._timers.run())
        runtime._spawn("progress", runtime._progress.run())
        runtime._spawn("resync", runtime._resync())
        for number, informer in enumerate(runtime._informers):
            runtime._spawn(f"informer {number}", informer.run())
        for number in range(settings.workers):
            runtime._spawn(f"worker {number}", runtime._work())
        # One replica: it leads at once.
        runtime.leading.set()
        return runtime

    async def stop(self) -> None:
        """Stop everything; what was under way is taken up by the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probes.stop()
        await self._kube.close()

    def job_event(self, kind: str | None, manifest: dict[str, Any]) -> None:
        """kopf's watch has seen a job."""
        key = key_of(manifest)
        if kind == "DELETED":
            self._jobs.remove(key, manifest["metadata"]["uid"])
        else:
            self._jobs.put(manifest)
        self._queue.add(key)

    def _child_changed(self, child: PodView | ServiceView) -> None:
        key = self._jobs.key_by_uid(child.controller_uid)
        if key is not None:
            self._queue.add(key)

    def _namespaces(self) -> tuple[str | None, ...]:
        return self._settings.watch_namespaces or (None,)

    def _make_informers(self) -> list[Informer[PodView] | Informer[ServiceView]]:
        informers: list[Informer[PodView] | Informer[ServiceView]] = []
        for namespace in self._namespaces():
            common: dict[str, Any] = {
                "api": CORE,
                "namespace": namespace,
                "selector": LABEL_JOB_UID,
            }
            informers += [
                Informer(self._kube, self._pods, pod_view, kind="pods", **common),
                Informer(self._kube, self._services, service_view, kind="services", **common),
            ]
        return informers

    def _not_ready(self) -> str:
        if self.trouble:
            return self.trouble
        synced = all(informer.synced.is_set() for informer in self._informers)
        return "" if synced and self._tasks else "still listing what exists"

    async def _wait_for_api(self) -> None:
        """Without its CRD there is nothing to watch, and kopf would not notice it later."""
        told = False
        while True:
            try:
                if await self._kube.job_api_exists():
                    return
                problem = f"the CRD {PLURAL} is not installed: kubectl apply -f crds/"
            except KubeError as error:
                problem = str(error)
            _log.log(logging.DEBUG if told else logging.WARNING, "waiting: %s", problem)
            told = True
            await asyncio.sleep(2)

    async def _work(self) -> None:
        """One worker: a key after the other, whatever becomes of each."""
        await self.leading.wait()
        for informer in self._informers:
            await informer.synced.wait()
        while True:
            key = await self._queue.get()
            try:
                await self._reconciler.reconcile(key)
            except KubeError as error:
                delay = self._queue.failed(key, time.time())
                _log.warning("%s/%s: %s; again in %.1f s", *key, error, delay)
            except Exception:  # noqa: BLE001 - one job must never stop the others
                delay = self._queue.failed(key, time.time())
                _log.exception("%s/%s: again in %.1f s", *key, delay)
            else:
                self._queue.done(key)

    async def _resync(self) -> None:
        """List all jobs now and then: kopf never learns of those that went unseen."""
        while True:
            await asyncio.sleep(self._settings.resync_interval * random.uniform(0.8, 1.2))
            for namespace in self._namespaces():
                try:
                    items, version = await self._kube.list_all(JOBS, namespace, PLURAL)
                except KubeError as error:
                    _log.warning("resync: %s", error)
                    continue
                for key in self._jobs.replace(items, int(version), namespace):
                    self._queue.add(key)

    def _spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(name, coroutine), name=name)
        self._tasks.append(task)

    async def _guarded(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """None of the tasks ends by itself. If one does the process ends, and starts anew."""
        try:
            await coroutine
            self.trouble = f"{name} has ended"
        except Exception as error:  # noqa: BLE001 - whatever it was, the process must not limp on
            self.trouble = f"{name}: {type(error).__name__}: {error}"
            _log.exception("%s broke", name)
        signal.raise_signal(signal.SIGTERM)


def policy_of(settings: Settings) -> Policy:
    """The part of the settings that decisions depend on."""
    return Policy(
        trainer_image=settings.trainer_image,
        progress_interval=settings.progress_interval,
        restart_backoff=settings.restart_backoff,
        restart_backoff_max=settings.restart_backoff_max,
    )
