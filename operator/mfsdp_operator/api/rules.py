"""What a spec must satisfy beyond types and bounds: the patterns and the words of each refusal.

Two readers: `cel.py` writes them into the CRD, `resolve.py` applies them to files. A test holds
each case against both, so that `mfsdp validate` and `kubectl apply` never disagree.
"""

from typing import Final

from .names import LABEL_MANAGED_BY, MAX_JOB_NAME, RESERVED_LABEL_PREFIX

MASTER_PORT: Final = 29500
"""Port of the rendezvous in the pod of node rank 0."""
MUTABLE_FIELDS: Final = ("suspend", "restarts")
"""Fields of the spec that may change while the job exists."""
BUILT_IN_SECTIONS: Final = ("model", "data", "training")
"""Sections that the built-in trainer needs, and a program of the user's own does not."""
RESERVED_POD_FIELDS: Final = ("hostname", "nodeName", "restartPolicy", "subdomain")
"""Fields of a pod's spec that make a gang of pods, so template must leave them to the operator."""
RESERVED_LABELS: Final = (LABEL_MANAGED_BY,)
MAX_CONNECTIONS_ENV: Final = "CUDA_DEVICE_MAX_CONNECTIONS"

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""DNS label (RFC 1035): a service has the job's name, and a service's must start with a letter."""
PATH_PATTERN: Final = "^(/[^:]*|(s3|gs|az)://[A-Za-z0-9][-A-Za-z0-9._]*(/[^:]*)?)$"
DOTS_PATTERN: Final = "(^|/)[.][.]?(/|$)"
SYSTEM_PATTERN: Final = "^/+((bin|dev|etc|lib|lib64|proc|run|sbin|sys|tmp|usr)(/|$)|$)"
PVC_PATTERN: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
RESOURCE_PATTERN: Final = (
    "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
)

NAME_REQUIRED: Final = "is required: give the job a name"
NAME_LENGTH: Final = (
    f"must have at most {MAX_JOB_NAME} characters: pods are called NAME-ATTEMPT-RANK, and a pod's "
    "name has at most 63"
)
NAME_FORM: Final = (
    "must consist of lower case letters, digits and '-', start with a letter, and end with a "
    "letter or digit: the job's pods find each other under this name in DNS"
)
EXCLUSIVE: Final = (
    "useMegatronFSDP and useTorchFSDP2 exclude each other: set at most one of them to true"
)
STRATEGY_WITHOUT_ENGINE: Final = (
    "needs an engine: set useTorchFSDP2 or useMegatronFSDP to true, or use no_shard"
)
MEGATRON_NEEDS_GPUS: Final = (
    "needs GPUs: set gpusPerNode to 1 or more, or use useTorchFSDP2 on CPUs"
)
REPLICAS_DIVIDE: Final = "must divide the world size"
REPLICAS_NEED_ENGINE: Final = (
    "dataParallelReplicas above 1 needs an engine: set useTorchFSDP2 or useMegatronFSDP to true"
)
REPLICAS_NEED_SHARDS: Final = (
    "dataParallelReplicas above 1 copies a sharded model, and no_shard shards nothing: leave it at "
    "1, or choose another dataParallelShardingStrategy"
)
REPLICAS_LEAVE_SHARDS: Final = (
    "dataParallelReplicas is the world size (nodes x procsPerNode): each copy would have one rank, "
    "and nothing would be sharded: lower it, or leave it at 1"
)
PROCS_EXCEED_GPUS: Final = (
    "procsPerNode must not exceed gpusPerNode: each process needs a GPU of its own"
)
PROCS_BELOW_GPUS: Final = (
    "procsPerNode is below gpusPerNode: each process uses one GPU, the others would idle; leave "
    "procsPerNode out, or lower gpusPerNode"
)
BATCH_MULTIPLE: Final = "must be a multiple of training.microBatchSize x nodes x procsPerNode"
RAMP_MULTIPLE: Final = "must be multiples of training.microBatchSize x nodes x procsPerNode"
RAMP_EVEN: Final = (
    "training.batchRamp.start must be below training.globalBatchSize by a multiple of "
    "training.batchRamp.increment"
)
LENGTH: Final = "set exactly one of training.steps and training.epochs"
ONE_WARMUP: Final = "set at most one of training.warmupSteps and training.warmupFraction"
ONE_DECAY: Final = "set at most one of training.decaySteps and training.decayFraction"
DECAY_OF_WSD: Final = (
    "training.decaySteps, decayFraction and decayForm are of schedule wsd: set it, or drop them"
)
WSD_ROOM: Final = (
    "training.schedule wsd: warmup and decay together must not exceed training.steps: shorten one "
    "of them"
)
WARMUP: Final = "training.warmupSteps must not exceed training.steps"
MIN_LEARNING_RATE: Final = "training.minLearningRate must not exceed training.learningRate"
SECTION_REQUIRED: Final = (
    "required, unless template gives the container trainer a command of its own"
)
MODEL_SOURCE: Final = "set exactly one of model.path and model.config"
LORA_BASE: Final = (
    "model.lora needs weights to adapt: set model.path, without randomInit, or drop lora"
)
LORA_FREEZE: Final = (
    "training.freeze and model.lora exclude each other: with lora adapters alone are trained; drop "
    "one of them"
)
DATA_SOURCE: Final = "set exactly one of path and builtin in each entry of data.sources"
DATA_BUILTIN: Final = "builtin is text: leave out format, or set it to text"
DATA_CONTENT: Final = "content chat and tokens are records: set format to jsonl, parquet or arrow"
DATA_SUFFIX: Final = "is not text: set format to"
PATHS: Final = (
    ("model", "path"),
    ("data.tokenizer", "path"),
    ("data.tokenizer", "chatTemplate"),
    ("logging", "jsonLines"),
    ("logging", "tensorboard"),
)
"""Sections and their fields that are paths in the container; each source of data has one too."""
ABSOLUTE: Final = (
    "must be an absolute path in the container: models of a hub and URLs are not fetched"
)
DATA_SPLIT: Final = "split is for format arrow: set it, or leave out split"
DATA_WEIGHTS: Final = "give every entry of data.sources a weight, or none of them"
VALIDATION_WEIGHT: Final = "data.validation takes no weight: leave it out"
TOKENIZER_PATH: Final = (
    "kind huggingface needs a tokenizer directory: set data.tokenizer.path, or model.path to a "
    "model that has one"
)
TOKENIZER_KIND: Final = "only kind huggingface reads a path: set kind to huggingface, or drop path"
RESOURCE_FORM: Final = "must be the name of an extended resource, for instance nvidia.com/gpu"
PVC_FORM: Final = "must be the name of a PersistentVolumeClaim in the job's namespace"
PATH_FORM: Final = (
    "must be an absolute path without ':' and without '.' or '..' as a part, for instance "
    "/checkpoints, or an object store such as s3://bucket/prefix (also gs:// and az://)"
)
PVC_NEEDS_DIRECTORY: Final = (
    "is mounted at checkpoint.path, which is an object store here: leave out one of the two"
)
PATH_SYSTEM: Final = (
    "must not be / or inside a directory of the container's own (/dev, /etc, /tmp, /usr ...): "
    "use another, for instance /checkpoints"
)
PORT_TAKEN: Final = f"{MASTER_PORT} is the port of the rendezvous: choose another"
MAX_CONNECTIONS: Final = (
    f"{MAX_CONNECTIONS_ENV}=1 makes a sharding engine wait for its own communication: leave it "
    "unset (the operator sets 32)"
)
RESERVED_FIELD: Final = "is set by the operator: leave it out of template"
RESERVED_LABEL: Final = (
    f"labels under {RESERVED_LABEL_PREFIX} and {LABEL_MANAGED_BY} are the operator's: leave them "
    "out of template"
)


def pvc_behind(mount: str) -> str:
    """Why a claim would not be in the pods."""
    return (
        f"template mounts a volume of its own at {mount}, which holds checkpoint.path: leave out "
        "one of the two"
    )


def immutable(field: str) -> str:
    """Why a field of the spec cannot change, and what to do instead."""
    return (
        f"{field} cannot change while the job exists (only suspend and restarts can): make a new "
        "job, or delete this one first"
    )


def misspelt(name: str, write: str) -> str:
    """What is said about a name that is not ours."""
    return f"{name} is not a field: write {write}"
