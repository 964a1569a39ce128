"""What the API tests use of a cluster: kubectl, and the jobs of one namespace as plain dicts."""

import json
import subprocess
from typing import Any

import pytest
from kubernetes import client

from mfsdp_operator.api import names
from mfsdp_operator.api.crd import crd

type Manifest = dict[str, Any]


def kubectl(*args: str, stdin: str | None = None, ok: bool = True) -> str:
    """Run kubectl; its output. With ok=False it must fail, and its error text is returned."""
    done = subprocess.run(
        ["kubectl", *args], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode == 0) is ok, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
    return done.stdout if ok else done.stderr


def twin(group: str) -> Manifest:
    """The CRD in another group, which no operator watches."""
    definition = crd()
    definition["metadata"]["name"] = f"{names.PLURAL}.{group}"
    definition["spec"]["group"] = group
    del definition["spec"]["names"]["shortNames"]  # taken by the real one
    return definition


class Jobs:
    """MegatronFSDPJobs of one namespace, as plain dicts."""

    def __init__(self, api: client.ApiClient, namespace: str, group: str) -> None:
        self.api = client.CustomObjectsApi(api)
        self.namespace = namespace
        self.resource = f"{names.PLURAL}.{group}"
        self.api_version = f"{group}/{names.VERSION}"
        self.args = (group, names.VERSION, namespace, names.PLURAL)

    def here(self, manifest: Manifest) -> Manifest:
        """The manifest as one of this group."""
        return manifest | {"apiVersion": self.api_version}

    def create(self, manifest: Manifest) -> Manifest:
        """POST, with unknown fields pruned as Helm and GitOps tools would have it."""
        made: Manifest = self.api.create_namespaced_custom_object(*self.args, self.here(manifest))
        return made

    def try_out(self, manifest: Manifest) -> Manifest:
        """POST as kubectl does it (unknown fields are errors), without storing anything."""
        made: Manifest = self.api.create_namespaced_custom_object(
            *self.args, self.here(manifest), dry_run="All", field_validation="Strict"
        )
        return made

    def get(self, name: str) -> Manifest:
        """GET."""
        found: Manifest = self.api.get_namespaced_custom_object(*self.args, name)
        return found

    def replace(self, manifest: Manifest) -> Manifest:
        """PUT of everything but status."""
        done: Manifest = self.api.replace_namespaced_custom_object(
            *self.args, manifest["metadata"]["name"], self.here(manifest)
        )
        return done

    def replace_status(self, manifest: Manifest) -> Manifest:
        """PUT of status alone."""
        done: Manifest = self.api.replace_namespaced_custom_object_status(
            *self.args, manifest["metadata"]["name"], self.here(manifest)
        )
        return done

    def delete(self, name: str) -> None:
        """DELETE."""
        self.api.delete_namespaced_custom_object(*self.args, name)


def refusal(jobs: Jobs, manifest: Manifest) -> str:
    """The API server's message for a new job that it must refuse."""
    with pytest.raises(client.ApiException) as caught:
        jobs.try_out(manifest)
    return message(caught.value)


def message(error: client.ApiException) -> str:
    """What the API server said when it refused a request as invalid."""
    assert error.status in (400, 422), error
    return str(json.loads(error.body)["message"])
