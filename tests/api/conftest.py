"""A namespace of its own on the embedded cluster's API server, with this tree's CRD installed.

The CRD is upgraded in place, as a user would. An operator may be running (a demo's, say) and would
write into stored jobs, so tests that store any use a twin of the CRD: the same but for its group.
"""

import json
import os
import secrets
from collections.abc import Iterator

import pytest
from kubernetes import client, config
from tests.api.bed import ROOT, use_bed
from tests.api.cluster import Jobs, kubectl, twin

from mfsdp_operator.api import names


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    """A client of the embedded cluster, with the CRD of this tree in place."""
    use_bed()
    loaded: client.ApiClient = config.new_client_from_config(os.environ["KUBECONFIG"])
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    _await_established(names.GROUP)
    return loaded


@pytest.fixture(scope="session")
def namespace(api: client.ApiClient) -> Iterator[str]:
    """A namespace for this run alone."""
    core = client.CoreV1Api(api)
    made = core.create_namespace({"metadata": {"generateName": "mfsdp-api-"}})
    yield made.metadata.name
    core.delete_namespace(made.metadata.name)


@pytest.fixture(scope="session")
def jobs(api: client.ApiClient, namespace: str) -> Jobs:
    """The jobs of this run's namespace, to try out (dry-run)."""
    return Jobs(api, namespace, names.GROUP)


@pytest.fixture(scope="session")
def twins(api: client.ApiClient, namespace: str) -> Iterator[Jobs]:
    """Jobs of the same API in a group of this run's own, to store."""
    group = f"run-{secrets.token_hex(4)}.test.mfsdp.dev"
    kubectl("create", "-f", "-", stdin=json.dumps(twin(group)))
    _await_established(group)
    yield Jobs(api, namespace, group)
    kubectl("delete", "--wait=false", f"crd/{names.PLURAL}.{group}")


def _await_established(group: str) -> None:
    name = f"crd/{names.PLURAL}.{group}"
    kubectl("wait", "--for=condition=Established", "--timeout=30s", name)
