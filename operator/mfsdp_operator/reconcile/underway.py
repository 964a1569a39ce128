"""An attempt under way: make its pods, follow them, notice how it ends."""

from dataclasses import replace

from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.api.status import AttemptState, JobPhase
from mfsdp_operator.builders.config_map import build_config_map
from mfsdp_operator.conditions import Situation

from . import attempts
from .admit import restart_policy, understand
from .draft import Draft
from .gang import Ending, Fate, Gang, Unsettled, ending
from .state import SETTLE_SECONDS, Action, Announce, CreateConfigMap, CreatePods, CreateService
from .training import at_the_end, merged
from .waiting import STARTING, Waiting, why_leftovers, why_waiting


def under_way(draft: Draft) -> Situation | None:
    """The situation of the current attempt. None: it is over, or must end, and the job goes on."""
    gang = draft.gang()
    if gang.count(Fate.SUCCEEDED) == draft.nodes:
        return _complete(draft, gang)
    if draft.seen.job.suspended:
        return None
    how = _how_it_ended(draft, gang)
    if how is not None:
        return _end(draft, how)
    if gang.missing:
        return _creating(draft, gang)
    draft.update(attempt_state=AttemptState.ACTIVE)
    draft.memory = replace(draft.memory, refusal=None)
    if not draft.seen.service_exists:
        draft.actions.append(CreateService())
    return _following(draft, gang)


def _complete(draft: Draft, gang: Gang) -> Situation:
    rank_0 = gang.fates[0][0]
    draft.update(training=at_the_end(draft.status.training, rank_0))
    pods = "the pod" if draft.nodes == 1 else f"all {draft.nodes} pods"
    message = f"{pods} ended well in attempt {draft.status.attempt}"
    return draft.finish(JobPhase.COMPLETE, JobReason.COMPLETE, message)


def _how_it_ended(draft: Draft, gang: Gang) -> Ending | None:
    """How the attempt ended. A first failure waits a moment for a better explanation."""
    since = draft.memory.failure_seen_at
    how = ending(
        gang,
        draft.seen.job.meta.name,
        draft.status.attempt,
        all_made=draft.status.attempt_state is AttemptState.ACTIVE,
        trusted=draft.trusted,
        settled=since is not None and draft.now >= since + SETTLE_SECONDS,
    )
    if not isinstance(how, Unsettled):
        return how
    since = draft.now if since is None else since
    draft.memory = replace(draft.memory, failure_seen_at=since)
    draft.look_again(since + SETTLE_SECONDS)
    return None


def _end(draft: Draft, how: Ending) -> Situation | None:
    limits = restart_policy(draft.seen.job.spec)
    draft.status, told = attempts.end(draft.status, how, limits, draft.policy, draft.now)
    draft.stop_training()
    draft.actions.append(told)
    if draft.status.phase is JobPhase.FAILED:
        return Situation(JobPhase.FAILED, told.reason, told.message)
    return None


def _creating(draft: Draft, gang: Gang) -> Situation:
    """Make the pods that are missing, with all that they need."""
    phase = draft.phase_until_running(JobPhase.PENDING)
    strays = [pod for pod in draft.seen.pods if pod.attempt != draft.status.attempt]
    if strays:
        # Whatever they are, two attempts must not meet.
        draft.delete(strays)
        return Situation(phase, JobReason.PODS_ENDING, why_leftovers(strays))
    refusal = draft.memory.refusal
    if refusal is not None and refusal.permanent:
        return draft.finish(JobPhase.FAILED, refusal.reason, refusal.message)
    if refusal is None or draft.now >= refusal.retry_at:
        draft.actions += _creations(draft, gang)
    else:
        draft.look_again(refusal.retry_at)
    if refusal is not None:
        return Situation(phase, refusal.reason, refusal.message)
    made = draft.nodes - len(gang.missing)
    return Situation(phase, JobReason.CREATING_PODS, f"{made} of {draft.nodes} pods are made")


def _creations(draft: Draft, gang: Gang) -> list[Action]:
    actions: list[Action] = []
    pin = _pin(draft)
    if pin is not None:
        actions.append(pin)
    if not draft.seen.service_exists:
        actions.append(CreateService())
    return [*actions, CreatePods(draft.status.attempt, gang.missing)]


def _pin(draft: Draft) -> CreateConfigMap | None:
    """The config map, in case there is none yet. A spec that this version of the operator no longer
    understands was pinned by the one that did."""
    job = draft.seen.job
    try:
        spec, resolved = understand(job)
    except InvalidSpecError:
        return None
    image = draft.policy.trainer_image
    return CreateConfigMap(build_config_map(job.meta, spec, resolved, image))


def _following(draft: Draft, gang: Gang) -> Situation:
    """All pods are made: they start, or train."""
    if draft.status.phase is not JobPhase.RUNNING and gang.count(Fate.WAITING):
        phase = draft.phase_until_running(JobPhase.STARTING)
        return _waiting(draft, phase, why_waiting(gang, draft.nodes, draft.now))
    seen = draft.seen
    draft.update(
        training=merged(draft.status.training, seen.training, draft.policy.progress_interval)
    )
    ready = all(pod.ready or what is Fate.SUCCEEDED for pod, what in gang.fates)
    if seen.training_problem:
        message = f"progress is unknown: {seen.training_problem}"
        return Situation(JobPhase.RUNNING, JobReason.PROGRESS_UNKNOWN, message, pods_ready=ready)
    return Situation(JobPhase.RUNNING, JobReason.TRAINING, "every trainer runs", pods_ready=ready)


def _waiting(draft: Draft, phase: JobPhase, why: Waiting) -> Situation:
    """A cause that may need a person is told once, as an Event, when it shows."""
    if why.look_again_at is not None:
        draft.look_again(why.look_again_at)
    before = {c.reason for c in draft.seen.job.status.conditions if c.type == "Ready"}
    if why.reason != STARTING and why.reason not in before:
        draft.actions.append(Announce("Warning", why.reason, why.message))
    return Situation(phase, why.reason, why.message)
