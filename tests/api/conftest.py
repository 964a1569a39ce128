"""A namespace of its own on the embedded cluster's API server, with this tree's CRD installed.

The CRD is upgraded in place, as a user would; a context that the suite did not make is refused.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config
from tests.api.cluster import Jobs, kubectl

from mfsdp_operator.api import names

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = "mfsdp-bed"
CRD = f"{names.PLURAL}.{names.GROUP}"


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    """A client of the embedded cluster, with the CRD of this tree in place."""
    contexts, current = config.list_kube_config_contexts()
    if current["name"] != CONTEXT:
        pytest.exit(
            f"these tests only run on the embedded cluster (context {CONTEXT}), not on "
            f'{current["name"]}: run `make cluster-up` and eval "$(python3 tests/bed env)"',
            returncode=4,
        )
    assert contexts
    loaded: client.ApiClient = config.new_client_from_config()
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{CRD}")
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
    """The jobs of this run's namespace."""
    return Jobs(api, namespace)
