"""What the operator makes: service, pin and pods."""

from typing import Any

import pytest
import yaml
from tests.unit.operator.views import OWN_PROGRAM, UID, built_in, job

from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.builders.config_map import PinError, build_config_map, read_pin
from mfsdp_operator.builders.overlay import overlay_problems
from mfsdp_operator.builders.pod import stamp
from mfsdp_operator.builders.service import build_service
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import CONFIG_MOUNT, OwnProgramEnv


def pod(spec: dict[str, Any] | None = None, attempt: int = 1, rank: int = 0) -> dict[str, Any]:
    """The pod of a rank, made the way the operator does: through the pin."""
    meta = job(spec).meta
    pin = read_pin(config_map(spec))
    return stamp(pin.pod_template, meta, attempt, rank)


def config_map(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pin of a job."""
    view = job(spec)
    parsed = JobSpec.model_validate(view.spec)
    return build_config_map(view.meta, parsed, resolve(parsed), "registry/trainer:1")


def trainer(manifest: dict[str, Any]) -> dict[str, Any]:
    """The trainer container of a pod."""
    found: dict[str, Any] = next(
        c for c in manifest["spec"]["containers"] if c["name"] == "trainer"
    )
    return found


def env(manifest: dict[str, Any]) -> dict[str, str]:
    """Environment of the trainer container."""
    return {entry["name"]: entry.get("value", "") for entry in trainer(manifest)["env"]}


def with_trainer(**fields: Any) -> dict[str, Any]:
    """A spec whose template gives the trainer container these fields."""
    return built_in(template={"spec": {"containers": [{"name": "trainer", **fields}]}})


def test_the_trainer_reads_what_was_resolved() -> None:
    config = TrainerConfig.model_validate(yaml.safe_load(config_map()["data"]["config.yaml"]))
    assert config.nodes == 2
    assert config.data_parallel_sharding_strategy == "optim_grads_params"


def test_the_pin_cannot_change_and_belongs_to_the_job() -> None:
    made = config_map()
    assert made["immutable"] is True
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, True)


def test_a_damaged_pin_is_told() -> None:
    with pytest.raises(PinError, match="llama-config"):
        read_pin({"metadata": {"name": "llama-config"}, "data": {}})


def test_the_service_names_pods_before_they_are_ready() -> None:
    spec = build_service(job().meta)["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)


def test_identity_of_a_pod() -> None:
    made = pod(attempt=3, rank=1)
    assert made["metadata"]["name"] == made["spec"]["hostname"] == "llama-3-1"
    assert made["spec"]["subdomain"] == "llama"
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["ownerReferences"][0]["controller"] is True
    values = env(made)
    assert values["MASTER_ADDR"] == "llama-3-0.llama"
    assert (values["NODE_RANK"], values["NNODES"], values["NPROC_PER_NODE"]) == ("1", "2", "1")
    assert (values["PET_NODE_RANK"], values["PET_RDZV_ID"]) == ("1", f"{UID}-3")
    assert (values["MFSDP_JOB_UID"], values["MFSDP_ATTEMPT"]) == (UID, "3")


def test_stamping_leaves_the_template_as_it_was() -> None:
    pin = read_pin(config_map())
    before = pin.model_dump_json()
    stamp(pin.pod_template, job().meta, 1, 0)
    assert pin.model_dump_json() == before


def test_pods_pass_the_restricted_standard() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = trainer(pod())["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)


def test_what_is_writable() -> None:
    mounts = {m["mountPath"]: m["name"] for m in trainer(pod())["volumeMounts"]}
    assert set(mounts) == {CONFIG_MOUNT, "/dev/shm", "/tmp", "/checkpoints"}
    volumes = {v["name"]: v for v in pod()["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert volumes[mounts["/checkpoints"]]["emptyDir"] == {}


def test_checkpoints_on_a_claim() -> None:
    made = pod(built_in(checkpoint={"path": "/ckpt", "pvc": "shared"}))
    claims = [
        v["persistentVolumeClaim"]
        for v in made["spec"]["volumes"]
        if len(v) > 1 and "persistentVolumeClaim" in v
    ]
    assert claims == [{"claimName": "shared"}]


def test_checkpoints_in_an_object_store_need_no_volume() -> None:
    made = pod(built_in(checkpoint={"path": "s3://bucket/run"}))
    assert [v for v in made["spec"]["volumes"] if "checkpoint" in v["name"]] == []


def test_checkpoints_on_a_volume_of_the_users_own() -> None:
    mount = {"name": "nfs", "mountPath": "/ckpt"}
    spec = with_trainer(volumeMounts=[mount]) | {"checkpoint": {"path": "/ckpt/run"}}
    spec["template"]["spec"]["volumes"] = [{"name": "nfs", "emptyDir": {}}]
    made = pod(spec)
    assert [v for v in made["spec"]["volumes"] if "checkpoint" in v["name"]] == []
    assert mount in trainer(made)["volumeMounts"]


def test_a_mount_of_the_claim_itself_keeps_the_claim() -> None:
    """The operator's own volume may be mounted in another way, for instance one directory of it."""
    mount = {"name": "mfsdp-checkpoint", "mountPath": "/ckpt", "subPath": "run"}
    made = pod(with_trainer(volumeMounts=[mount]) | {"checkpoint": {"path": "/ckpt", "pvc": "c"}})
    assert [m for m in trainer(made)["volumeMounts"] if m["mountPath"] == "/ckpt"] == [mount]
    claim = {"name": "mfsdp-checkpoint", "persistentVolumeClaim": {"claimName": "c"}}
    assert claim in made["spec"]["volumes"]


def test_gpus() -> None:
    spec = built_in(gpusPerNode=8, useTorchFSDP2=False, useMegatronFSDP=True)
    spec["training"] = {"steps": 1, "globalBatchSize": 16}
    made = pod(spec)
    assert trainer(made)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert env(made)["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert env(made)["WORLD_SIZE"] == "16"


def test_no_engine_leaves_cuda_connections_alone() -> None:
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in env(pod(built_in(useTorchFSDP2=False)))


@pytest.mark.parametrize(
    ("cpu", "threads"), [(None, "1"), ("6", "3"), ("500m", "1"), ("16", "8"), (4, "2")]
)
def test_threads_follow_the_cpus_of_a_process(cpu: object, threads: str) -> None:
    spec = with_trainer(resources={"limits": {"cpu": cpu}} if cpu else {}) | {"procsPerNode": 2}
    assert env(pod(spec))["OMP_NUM_THREADS"] == threads


def test_the_users_variables_win_and_may_refer_to_ours() -> None:
    mine = [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "R", "value": "$(NODE_RANK)"}]
    made = pod(with_trainer(env=mine), rank=1)
    assert env(made)["OMP_NUM_THREADS"] == "7"
    names = [entry["name"] for entry in trainer(made)["env"]]
    assert names.index("NODE_RANK") < names.index("R")
    assert len(names) == len(set(names))


def test_workers_stop_in_time_to_say_why() -> None:
    assert env(pod())["MFSDP_STOP_TIMEOUT"] == "105"
    spec = built_in(template={"spec": {"terminationGracePeriodSeconds": 600}})
    assert env(pod(spec))["MFSDP_STOP_TIMEOUT"] == "585"


def test_a_program_of_the_users_own() -> None:
    container = trainer(pod({"nodes": 2, "gpusPerNode": 0, "template": OWN_PROGRAM}))
    assert container["command"] == ["python", "mine.py"]
    assert "readinessProbe" not in container
    assert container["image"] == "registry/trainer:1"


def test_a_program_of_the_users_own_is_told_the_jobs_sharding() -> None:
    spec = {
        "nodes": 2,
        "gpusPerNode": 4,
        "useTorchFSDP2": True,
        "dataParallelReplicas": 2,
        "checkpoint": {"path": "/ckpt"},
        "template": OWN_PROGRAM,
    }
    values = env(pod(spec))
    assert values["MFSDP_ENGINE"] == "torch_fsdp2"
    assert values["MFSDP_SHARDING_STRATEGY"] == "optim_grads_params"
    assert values["MFSDP_DATA_PARALLEL_REPLICAS"] == "2"
    assert values["MFSDP_CHECKPOINT_DIR"] == "/ckpt"
    assert values["MFSDP_FSDP_ARGS"] == (
        "--use_torch_fsdp2 true --data_parallel_sharding_strategy optim_grads_params "
        "--num_distributed_optimizer_instances 2"
    )
    assert not set(OwnProgramEnv) & set(env(pod()))


def test_the_template_is_laid_over() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"k": "v"}},
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "gpu"}, {"key": "node.kubernetes.io/not-ready"}],
            "securityContext": {"runAsUser": None, "supplementalGroups": [7]},
            "containers": [{"name": "logs", "image": "x"}, {"name": "trainer", "image": "mine"}],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }
    made = pod(built_in(template=template))
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["annotations"] == {"k": "v"}
    spec = made["spec"]
    assert spec["nodeSelector"] == {"gpu": "h200"}
    assert [t["key"] for t in spec["tolerations"]] == [
        "gpu",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert "runAsUser" not in spec["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert [c["name"] for c in spec["containers"]] == ["trainer", "logs"]
    assert trainer(made)["image"] == "mine"
    assert trainer(made)["command"][0] == "mfsdp-train"
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


MOUNT = {"mountPath": "/etc/mfsdp/"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"activeDeadlineSeconds": 5}}, "spec.template.spec.activeDeadlineSeconds"),
    ({"metadata": {"labels": {"a": 1}}}, "a must be a string, not 1: put it in quotes"),
    ({"spec": {"volumes": [{"name": "mfsdp-config"}]}}, "mfsdp-config is the operator's"),
    ({"spec": {"containers": [{"name": "trainer", "args": ["x"]}]}}, "remove args"),
    (
        {"spec": {"containers": [{"name": "trainer", "env": [{"name": "NODE_RANK"}]}]}},
        "NODE_RANK is set by the operator",
    ),
    (
        {
            "spec": {
                "containers": [{"name": "trainer", "volumeMounts": [{"mountPath": "/etc/mfsdp/"}]}]
            }
        },
        "/etc/mfsdp holds the operator's own files",
    ),
    (
        {"spec": {"containers": [{"name": "trainer", "terminationMessagePath": "/x"}]}},
        "terminationMessagePath: leave it to the operator",
    ),
    (
        {"spec": {"containers": [{"name": "main", "env": []}]}},
        "containers[main]: a container beside the trainer needs an image; the trainer's own is",
    ),
    ({"spec": {"initContainers": [{"name": "trainer"}]}}, "initContainers[trainer]: a container"),
]


@pytest.mark.parametrize(("template", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_templates(template: dict[str, Any], said: str) -> None:
    assert any(said in str(problem) for problem in overlay_problems(JobSpec(template=template)))


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {}}, {"metadata": 5, "spec": 6}])
def test_nothing_to_refuse_or_nothing_to_read(template: dict[str, Any]) -> None:
    assert overlay_problems(JobSpec(template=template)) == []


GPU, OTHER_GPU = "nvidia.com/gpu", "amd.com/gpu"


@pytest.mark.parametrize(
    ("gpus", "resources", "kind"),
    [
        (2, {"limits": {GPU: 4}}, "limits"),
        (2, {"limits": {GPU: None}}, "limits"),
        (2, {"limits": None}, "limits"),
        (2, None, "limits"),
        (2, {"requests": {GPU: "1"}}, "requests"),
        (0, {"limits": {GPU: "1"}}, "limits"),
        (0, {"requests": {GPU: "1"}}, "requests"),
    ],
)
def test_gpus_of_the_template_beside_those_of_the_job(gpus: int, resources: Any, kind: str) -> None:
    template = with_trainer(resources=resources)["template"]
    [problem] = overlay_problems(JobSpec(gpus_per_node=gpus, template=template))
    assert str(problem) == (
        f"spec.template.spec.containers[trainer].resources.{kind}: leave nvidia.com/gpu to "
        "gpusPerNode, which also says how many processes there are"
    )


@pytest.mark.parametrize(
    ("gpus", "resources"),
    [
        (2, {"limits": {GPU: "2"}, "requests": {GPU: 2}}),
        (2, {"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}}),
        (2, {"limits": {OTHER_GPU: 1}}),
        (0, {"limits": {GPU: "0", OTHER_GPU: 1}}),
        (0, None),
    ],
)
def test_other_resources_of_the_template(gpus: int, resources: Any) -> None:
    template = with_trainer(resources=resources)["template"]
    assert overlay_problems(JobSpec(gpus_per_node=gpus, template=template)) == []
    assert overlay_problems(JobSpec(gpus_per_node=gpus)) == []


def test_gpus_under_the_jobs_own_name_of_the_resource() -> None:
    template = with_trainer(resources={"limits": {OTHER_GPU: 1, GPU: 1}})["template"]
    job = JobSpec(gpus_per_node=0, gpu_resource=OTHER_GPU, template=template)
    assert [str(problem).split()[2] for problem in overlay_problems(job)] == [OTHER_GPU, GPU]
