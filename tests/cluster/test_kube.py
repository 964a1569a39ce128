"""The operator's API module and its informer against the real API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from tests.api.bed import use_bed
from tests.api.cluster import kubectl
from tests.cluster.kit import Manifest

from mfsdp_operator.actor import refusal
from mfsdp_operator.informer import Informer, Store
from mfsdp_operator.kube import (
    CORE,
    JOBS,
    AlreadyExistsError,
    ConflictError,
    GoneError,
    Kube,
    KubeError,
    NotFoundError,
)
from mfsdp_operator.objects import ServiceView, service_view


@pytest.fixture
async def kube() -> AsyncIterator[Kube]:
    """A connection to the embedded cluster."""
    use_bed()
    connected = await Kube.connect()
    yield connected
    await connected.close()


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """A namespace of its own."""
    name = f"kube-{uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def service(owner: Manifest, name: str) -> Manifest:
    """A headless service with a label to select it by, controlled by `owner`."""
    meta = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
    reference |= {"name": meta["name"], "uid": meta["uid"]}
    return {
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {"suite": meta["namespace"]},
            "ownerReferences": [reference],
        },
        "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
    }


def pod(namespace: str, name: str) -> Manifest:
    """A pod that no node will take."""
    spec = {"nodeSelector": {"no": "where"}, "containers": [{"name": "a", "image": "b"}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def test_errors_say_what_they_are(kube: Kube, namespace: str) -> None:
    with pytest.raises(NotFoundError, match="not found"):
        await kube.get_config_map(namespace, "absent")
    made = {"metadata": {"name": "once", "namespace": namespace}, "data": {}}
    await kube.create_config_map(made)
    with pytest.raises(AlreadyExistsError):
        await kube.create_config_map(made)
    with pytest.raises(KubeError) as caught:
        await kube.create_service({"metadata": {"name": "Bad Name", "namespace": namespace}})
    assert caught.value.status == 422
    assert "Bad Name" in caught.value.message


async def test_a_field_that_does_not_exist_is_told_and_not_dropped(
    kube: Kube, namespace: str
) -> None:
    misspelt = pod(namespace, "a")
    misspelt["spec"]["containers"][0]["resources"] = {"limit": {"memory": "1Gi"}}
    with pytest.raises(KubeError) as caught:
        await kube.create_pod(misspelt)
    refused = refusal(caught.value, "pod")
    assert (refused.reason, refused.permanent) == ("CreateInvalid", True)
    assert 'unknown field "spec.containers[0].resources.limit"' in str(refused)


async def test_another_pod_under_the_name_is_not_deleted(kube: Kube, namespace: str) -> None:
    made = await kube.create_pod(pod(namespace, "a"))
    with pytest.raises(ConflictError):
        await kube.delete_pod(namespace, "a", "not-its-uid")
    await kube.delete_pod(namespace, "a", made["metadata"]["uid"])


async def test_a_watch_from_too_long_ago_is_told_apart(kube: Kube, operator: str) -> None:
    """Jobs, for the API server's memory of them starts with the CRD; that of services may start
    with the first write of a new cluster, and then nothing is too long ago."""
    with pytest.raises(GoneError):
        async for _ in kube.watch(JOBS, None, "megatronfsdpjobs", "", "1"):
            pass


async def test_the_job_api_is_found(kube: Kube, operator: str) -> None:
    assert await kube.job_api_exists()
    items, version = await kube.list_all(JOBS, None, "megatronfsdpjobs")
    assert int(version) > 0
    assert isinstance(items, list)
    assert await kube.server_version() > (1, 20)


async def test_a_stale_status_is_refused(kube: Kube, namespace: str, operator: str) -> None:
    manifest = {
        "apiVersion": "training.mfsdp.dev/v1alpha1",
        "kind": "MegatronFSDPJob",
        "metadata": {"name": "stale", "namespace": namespace},
        "spec": {
            "gpusPerNode": 0,
            "suspend": True,
            "template": {"spec": {"containers": [{"name": "trainer", "command": ["true"]}]}},
        },
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    seen = await kube.get_job(namespace, "stale")
    kubectl("-n", namespace, "label", "mfj", "stale", "touched=yes")
    with pytest.raises(ConflictError):
        await kube.put_job_status(seen, {"observedGeneration": 1})


async def test_the_informer_sees_what_comes_goes_and_went_unseen(
    kube: Kube, namespace: str
) -> None:
    # The garbage collector would take children of an owner that does not exist.
    owner = await kube.create_config_map({"metadata": {"name": "owner", "namespace": namespace}})
    uid = owner["metadata"]["uid"]
    changed = asyncio.Event()
    store: Store[ServiceView] = Store(lambda _: changed.set())

    def informer() -> Informer[ServiceView]:
        where = {"api": CORE, "kind": "services", "namespace": namespace}
        return Informer(kube, store, service_view, selector=f"suite={namespace}", **where)

    async def until(*names: str) -> None:
        async with asyncio.timeout(30):
            while {view.name for view in store.of(uid)} != set(names):
                changed.clear()
                await changed.wait()

    first = informer()
    task = asyncio.create_task(first.run())
    async with asyncio.timeout(30):
        await first.synced.wait()
    await kube.create_service(service(owner, "a"))
    await kube.create_service(service(owner, "b"))
    await until("a", "b")
    kubectl("-n", namespace, "delete", "service", "a")
    await until("b")
    task.cancel()

    kubectl("-n", namespace, "delete", "service", "b")
    await kube.create_service(service(owner, "c"))
    task = asyncio.create_task(informer().run())
    await until("c")
    task.cancel()
