"""Environment of the trainer container: who it is, where the gang meets, how libraries behave."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from mfsdp_operator.api.job import JobMeta
from mfsdp_operator.api.names import pod_name, service_name
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_operator.api.rules import MASTER_PORT
from mfsdp_operator.api.spec import JobSpec
from mfsdp_trainer.config import Engine, ResolvedSharding
from mfsdp_trainer.contract import CONFIG_FILE, Env, OwnProgramEnv

_LAST_WORDS_SECONDS: Final = 15

PER_POD: Final = (
    Env.ATTEMPT.value,
    "MASTER_ADDR",
    "NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_NODE_RANK",
    "PET_RDZV_ID",
)
"""Variables that `stamp` fills in; they differ from pod to pod or from attempt to attempt."""

RESERVED_ENV: Final = frozenset(
    {
        *PER_POD,
        Env.CONFIG.value,
        Env.JOB_NAME.value,
        Env.JOB_UID.value,
        Env.TERMINATION_LOG.value,
        *(name.value for name in OwnProgramEnv),
        "MASTER_PORT",
        "NNODES",
        "NPROC_PER_NODE",
        "WORLD_SIZE",
        "PET_MASTER_PORT",
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
    }
)
"""Variables that a template must not set: a rank with another idea of the gang hangs all others."""


def gang_env(job: JobMeta, spec: JobSpec, resolved: ResolvedJob) -> dict[str, str]:
    """Variables that a template cannot change; those of PER_POD are still empty.

    Three families for three kinds of launcher: ours, torchrun's (PET_*), and the plain names that
    `megatron sft` and shell scripts read.
    """
    nodes, procs = str(spec.nodes), str(resolved.procs_per_node)
    own = own_program_env(spec, resolved.sharding) if resolved.own_program else {}
    return {
        Env.CONFIG: CONFIG_FILE,
        Env.JOB_NAME: job.name,
        Env.JOB_UID: job.uid,
        **dict.fromkeys(PER_POD, ""),
        "MASTER_PORT": str(MASTER_PORT),
        "NNODES": nodes,
        "NPROC_PER_NODE": procs,
        "WORLD_SIZE": str(resolved.world_size),
        "PET_MASTER_PORT": str(MASTER_PORT),
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": procs,
        **own,
    }


def own_program_env(spec: JobSpec, sharding: ResolvedSharding) -> dict[str, str]:
    """The job's choices for a program that shards by itself: the operator checks them, and only the
    program can carry them out."""
    return {
        OwnProgramEnv.ENGINE: sharding.engine.value,
        OwnProgramEnv.STRATEGY: sharding.strategy.value,
        OwnProgramEnv.REPLICAS: str(spec.data_parallel_replicas),
        OwnProgramEnv.CHECKPOINT_DIR: spec.checkpoint.path,
        OwnProgramEnv.FSDP_ARGS: " ".join(fsdp_args(spec, sharding)),
    }


def fsdp_args(spec: JobSpec, sharding: ResolvedSharding) -> list[str]:
    """The sharding fields as arguments of `megatron sft`, under the names that ms-swift gave them.

    None without an engine, so that releases that know no such argument can be used. An engine, or
    replicas, that a release does not know is an unknown argument there: ms-swift refuses it and
    never trains something else.
    """
    if sharding.engine is Engine.DDP:
        return []
    flag = {Engine.MEGATRON_FSDP: "use_megatron_fsdp", Engine.TORCH_FSDP2: "use_torch_fsdp2"}
    args = [f"--{flag[sharding.engine]}", "true"]
    args += ["--data_parallel_sharding_strategy", sharding.strategy.value]
    if spec.data_parallel_replicas > 1:
        args += ["--num_distributed_optimizer_instances", str(spec.data_parallel_replicas)]
    return args


def library_env(spec: JobSpec, resolved: ResolvedJob, pod: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a template may change. `pod` is the pod's spec with the template laid over."""
    env = {"HOME": "/tmp", "OMP_NUM_THREADS": str(_threads(pod, resolved.procs_per_node))}
    if not resolved.own_program:
        # Workers that have not ended by then are killed while there is time left to say why.
        grace = int(pod.get("terminationGracePeriodSeconds") or 0)
        env[Env.STOP_TIMEOUT.value] = str(max(grace - _LAST_WORDS_SECONDS, 1))
    if not pod.get("hostNetwork"):
        # gloo looks its address up by host name, which in a pod may resolve to another interface.
        env["GLOO_SOCKET_IFNAME"] = "eth0"
    if spec.use_megatron_fsdp or spec.use_torch_fsdp2:
        # 1 would put gathers and computation into one hardware queue: no overlap. Megatron refuses
        # it, and ms-swift sets 1 where it finds nothing.
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    return env


def stamped_env(job: str, uid: str, attempt: int, rank: int) -> dict[str, str]:
    """The values of PER_POD for one pod."""
    master = f"{pod_name(job, attempt, 0)}.{service_name(job)}"
    return {
        Env.ATTEMPT: str(attempt),
        "MASTER_ADDR": master,
        "NODE_RANK": str(rank),
        "PET_MASTER_ADDR": master,
        "PET_NODE_RANK": str(rank),
        "PET_RDZV_ID": f"{uid}-{attempt}",
    }


def _threads(pod: Mapping[str, Any], procs: int) -> int:
    """CPU threads of a process: its share of the CPUs that the template asks for, else one.

    Without this torch takes every core of the node, once for each process on it.
    """
    for container in pod.get("containers") or ():
        if container.get("name") == "trainer":
            resources = container.get("resources") or {}
            for kind in ("limits", "requests"):
                cpus = _cpus((resources.get(kind) or {}).get("cpu"))
                if cpus:
                    return max(1, math.floor(cpus / procs))
    return 1


def _cpus(quantity: object) -> float:
    """A Kubernetes CPU quantity in cores; 0 for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", str(quantity))
    if not match:
        return 0.0
    return float(match[1]) / (1000 if match[2] else 1)
