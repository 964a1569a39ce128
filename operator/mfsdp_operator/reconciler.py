"""The imperative shell: look at a job, decide, write its status, act. One job at a time, by key.

The order is what makes it safe. The status comes first, with the resourceVersion of the job that
was looked at: whoever looked at an old job stops there. Actions come after, and can be repeated.
"""

import logging
import time
from dataclasses import replace
from typing import Any

from mfsdp_trainer.words import counted

from .actor import Actor, Refused
from .api.names import pod_name
from .api.status import AttemptState, JobPhase, JobStatus, WorkersStatus
from .informer import Store
from .jobs import Jobs, Key
from .kube import ConflictError, Kube, NotFoundError
from .objects import JobView, PodView, ServiceView, job_view
from .progress import ProgressPoller, Target
from .queue import WorkQueue
from .reconcile import Decision, Memory, Observed, Policy, decide
from .reconcile.state import Refusal

_log = logging.getLogger(__name__)
_WRITE_EVERY = 1.0
"""Status that changed only in its numbers is written this often at most, in seconds."""
_FIRST_RETRY, _LAST_RETRY = 2.0, 120.0


class Reconciler:
    """Brings one job after the other closer to what it should be."""

    def __init__(
        self,
        kube: Kube,
        jobs: Jobs,
        pods: Store[PodView],
        services: Store[ServiceView],
        queue: WorkQueue[Key],
        policy: Policy,
    ) -> None:
        self._kube = kube
        self._jobs = jobs
        self._pods = pods
        self._services = services
        self._queue = queue
        self._policy = policy
        self._actor = Actor(kube, pods, services)
        self._memories: dict[Key, Memory] = {}
        self._written: dict[Key, float] = {}
        self.progress: ProgressPoller | None = None

    async def reconcile(self, key: Key) -> None:
        """Look, decide, act. Raises KubeError when the API server is out of reach."""
        manifest = self._jobs.get(key)
        if manifest is None:
            self._forget(key)
            return
        decision = decide(self._look(key, manifest), self._policy, time.time())
        if decision.refresh:
            manifest = await self._read_again(key)
            if manifest is None:
                return
            seen = replace(self._look(key, manifest), fresh=True)
            decision = decide(seen, self._policy, time.time())
        await self._carry_out(key, manifest, decision)

    def _look(self, key: Key, manifest: dict[str, Any]) -> Observed:
        job = job_view(manifest)
        training, problem = None, ""
        if self.progress is not None:
            training, problem = self.progress.known(key, job.status.attempt)
        return Observed(
            job=job,
            pods=self._pods.of(job.meta.uid),
            service_exists=bool(self._services.of(job.meta.uid)),
            training=training,
            training_problem=problem,
            memory=self._memories.get(key, Memory()),
        )

    async def _carry_out(self, key: Key, manifest: dict[str, Any], decision: Decision) -> None:
        job = job_view(manifest)
        self._memories[key] = decision.memory
        if decision.look_again_at is not None:
            self._queue.add_at(key, decision.look_again_at)
        self._follow(key, job, decision.status)
        if not await self._write(key, manifest, job.status, decision.status):
            return
        try:
            await self._actor.carry_out(job.meta, decision.actions)
        except Refused as refused:
            self._remember(key, decision.memory, refused)
        if decision.actions:
            # What was done shows in the stores already; go on from there.
            self._queue.add(key)

    async def _write(
        self, key: Key, manifest: dict[str, Any], old: JobStatus, new: JobStatus
    ) -> bool:
        """Write the status if it changed. False: the job is not the one we looked at."""
        if new == old:
            return True
        now = time.monotonic()
        due = self._written.get(key, -_WRITE_EVERY) + _WRITE_EVERY
        if now < due and _landmarks(new) == _landmarks(old):
            self._queue.add_at(key, time.time() + due - now)
            return True
        body = new.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            self._jobs.put(await self._kube.put_job_status(manifest, body))
        except ConflictError:
            if await self._read_again(key) is not None:
                self._queue.add(key)
            return False
        except NotFoundError:
            self._jobs.remove(key, manifest["metadata"]["uid"])
            self._queue.add(key)
            return False
        self._written[key] = now
        for line in attempt_news(old, new):
            _log.info("%s/%s: %s", *key, line)
        return True

    async def _read_again(self, key: Key) -> dict[str, Any] | None:
        try:
            manifest = await self._kube.get_job(*key)
        except NotFoundError:
            self._jobs.remove(key)
            self._forget(key)
            return None
        self._jobs.put(manifest)
        return manifest

    def _remember(self, key: Key, memory: Memory, refused: Refused) -> None:
        """The API server would not: say so on the job, and try again later."""
        before = memory.refusal
        delay = min((before.delay if before else _FIRST_RETRY / 2) * 2, _LAST_RETRY)
        retry_at = time.time() + delay
        refusal = Refusal(refused.reason, str(refused), retry_at, delay, refused.permanent)
        self._memories[key] = replace(memory, refusal=refusal)
        again = "the job fails" if refused.permanent else f"again in {delay:.0f} s"
        _log.warning("%s/%s: %s; %s", *key, refused, again)

    def _follow(self, key: Key, job: JobView, status: JobStatus) -> None:
        """Ask rank 0 for progress while the built-in trainer runs."""
        if self.progress is None:
            return
        target = None
        if status.phase is JobPhase.RUNNING:
            name = pod_name(job.meta.name, status.attempt, 0)
            for pod in self._pods.of(job.meta.uid):
                if pod.name == name and pod.running and pod.ip and job.built_in_trainer:
                    target = Target(job.meta.uid, status.attempt, pod.ip, job.progress_port)
        self.progress.follow(key, target)

    def _forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self._written.pop(key, None)
        if self.progress is not None:
            self.progress.follow(key, None)


def attempt_news(old: JobStatus, new: JobStatus) -> list[str]:
    """Lines for the log: an attempt ended, and why, or was begun."""
    news = []
    begun = new.attempt != old.attempt
    was_on = old.attempt_state in (AttemptState.CREATING, AttemptState.ACTIVE)
    if was_on and (begun or new.attempt_state is AttemptState.ENDED):
        news.append(f"attempt {old.attempt} ended: {_why_ended(old.attempt, new)}")
    if begun:
        news.append(f"attempt {new.attempt} begins: {counted(new.workers.desired, 'pod')}")
    return news


def _why_ended(attempt: int, status: JobStatus) -> str:
    last = status.last_failure
    if last is not None and last.attempt == attempt:
        return f"{last.reason}: {last.message} (pod {last.pod})"
    # A suspended job has no Ready.
    told = [c.reason for c in status.conditions if c.type in ("Ready", "Suspended")]
    return told[0] if told else str(status.phase)


def _landmarks(status: JobStatus) -> tuple[object, ...]:
    """The status without what merely counts."""
    conditions = [(c.type, c.status, c.reason) for c in status.conditions]
    bare = {"workers": WorkersStatus(), "training": None, "conditions": ()}
    over = status.attempt_state is AttemptState.ENDED
    # A last word: the pod that said it is about to be gone.
    last = status.training if over else None
    last_word = (last.step, last.checkpoint_step) if last else None
    return status.model_copy(update=bare), conditions, last_word
