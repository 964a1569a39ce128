"""The one module that speaks to the API server.

It uses the official client's transport and logins (kubernetes.aio) without its typed models: JSON
in, JSON out, at a tenth of the cost. What that transport lacks is here: retries of 429 and 5xx with
Retry-After for every verb, a limit on writes, and a watch that says what went wrong.

Retrying a write is safe because of how we write: children are made under fixed names (a second POST
gets 409, and the caller looks at what is there), deletions name a uid, status carries the
resourceVersion that it was computed from.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
import kopf
from kubernetes.aio import client, config

from .api.names import API_VERSION, GROUP, PLURAL, VERSION
from .limiter import Limiter

_log = logging.getLogger(__name__)

JsonObject = dict[str, Any]
JOBS: Final = f"apis/{GROUP}/{VERSION}"
CORE: Final = "api/v1"
PAGE_SIZE: Final = 500
_ATTEMPTS: Final = 5
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_LONGEST_RETRY_AFTER: Final = 10.0
_REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=10)
_IN_FLIGHT: Final = 96
_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 75
"""Bookmarks come every minute; a watch that is silent for longer is dead."""


class KubeError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class ConflictError(KubeError):
    """409: the object was changed by another, or exists already."""


class AlreadyExistsError(ConflictError):
    """409 to a POST: the name is taken."""


class NotFoundError(KubeError):
    """404."""


class GoneError(KubeError):
    """410: the resourceVersion is too old to go on from; list anew."""


_BY_STATUS: Final = {404: NotFoundError, 409: ConflictError, 410: GoneError}


async def load_config() -> client.Configuration:
    """Where the API server is and who we are: KUBECONFIG, or the pod's service account."""
    configuration = client.Configuration()
    if Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists():
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        # The library itself looks at KUBECONFIG when it is imported. Nothing is written back.
        file = os.environ.get("KUBECONFIG") or None
        await config.load_kube_config(file, None, configuration, persist_config=False)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = _IN_FLIGHT + 32  # watches hold connections too
    return configuration


async def kopf_login() -> kopf.ConnectionInfo:
    """The same login, in the form that kopf wants."""
    found = await load_config()
    header: str = await found.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
    )


class Kube:
    """A connection to the API server. Every method raises KubeError."""

    def __init__(self, api: client.ApiClient, limiter: Limiter) -> None:
        self._api = api
        self._limiter = limiter
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)

    @classmethod
    async def connect(cls, limiter: Limiter | None = None) -> Self:
        """Log in."""
        api = client.ApiClient(await load_config())
        api.user_agent = "mfsdp-operator"
        return cls(api, limiter or Limiter(400.0, 800))

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def server_version(self) -> tuple[int, int]:
        """Major and minor version of the API server."""
        found = await self._request("GET", "version")
        return int(found["major"]), int(found["minor"].rstrip("+"))

    # --- jobs ---

    async def job_api_exists(self) -> bool:
        """Whether the CRD is installed."""
        try:
            found = await self._request("GET", JOBS)
        except NotFoundError:
            return False
        return any(resource["name"] == PLURAL for resource in found["resources"])

    async def get_job(self, namespace: str, name: str) -> JsonObject:
        """A job."""
        return await self._request("GET", _path(JOBS, namespace, PLURAL, name))

    async def put_job_status(self, job: Mapping[str, Any], status: Mapping[str, Any]) -> JsonObject:
        """Replace a job's status; ConflictError if the job is not the one we looked at."""
        meta = job["metadata"]
        kept = ("name", "namespace", "uid", "resourceVersion")
        body = {
            "apiVersion": API_VERSION,
            "kind": job.get("kind", "MegatronFSDPJob"),
            "metadata": {key: meta[key] for key in kept},
            "spec": job.get("spec", {}),
            "status": status,
        }
        path = _path(JOBS, meta["namespace"], PLURAL, meta["name"]) + "/status"
        return await self._request("PUT", path, body=body)

    # --- children ---

    async def create_pod(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Make a pod; ConflictError if one of that name exists."""
        return await self._create("pods", manifest)

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        """A pod."""
        return await self._request("GET", _path(CORE, namespace, "pods", name))

    async def delete_pod(self, namespace: str, name: str, uid: str) -> JsonObject:
        """Tell this very pod to end, within its own grace period."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        return await self._request("DELETE", _path(CORE, namespace, "pods", name), body=body)

    async def create_service(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Make a service; ConflictError if one of that name exists."""
        return await self._create("services", manifest)

    async def get_service(self, namespace: str, name: str) -> JsonObject:
        """A service."""
        return await self._request("GET", _path(CORE, namespace, "services", name))

    async def create_config_map(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Make a config map; ConflictError if one of that name exists."""
        return await self._create("configmaps", manifest)

    async def get_config_map(self, namespace: str, name: str) -> JsonObject:
        """A config map."""
        return await self._request("GET", _path(CORE, namespace, "configmaps", name))

    async def create_event(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Make an Event."""
        return await self._create("events", manifest)

    async def pod_proxy(self, namespace: str, name: str, port: int, path: str) -> JsonObject:
        """GET a JSON document from a port of a pod, through the API server (for `mfsdp watch`)."""
        pod = _path(CORE, namespace, "pods", f"{name}:{port}")
        return await self._request("GET", f"{pod}/proxy/{path.lstrip('/')}")

    # --- lists and watches ---

    async def list_all(
        self, api: str, namespace: str | None, kind: str, selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """All objects of a kind, page by page, and the resourceVersion to watch from.

        GoneError when the list changed too much between two pages: begin again.
        """
        items: list[JsonObject] = []
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._request("GET", _path(api, namespace, kind), query=query)
            items += page["items"]
            meta = page["metadata"]
            if not meta.get("continue"):
                return items, meta["resourceVersion"]
            query["continue"] = meta["continue"]

    async def watch(
        self, api: str, namespace: str | None, kind: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, JsonObject]]:
        """Events after a resourceVersion, bookmarks too, until the server ends the watch.

        Raises GoneError when the version is too old.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "labelSelector": selector,
            "timeoutSeconds": str(_WATCH_SECONDS + random.randrange(60)),
        }
        url = self._url(_path(api, namespace, kind), query)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE_SECONDS)
        with _unreachable_as_kube_error():
            response = await self._send("GET", url, None, timeout)
            async with contextlib.aclosing(_lines(response)) as lines:
                async for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), event["object"])
                    yield event["type"], event["object"]

    # --- transport ---

    async def _create(self, kind: str, manifest: Mapping[str, Any]) -> JsonObject:
        # By default the API server drops a field that does not exist, and says so in a header: what
        # a template misspells below its first levels would vanish from the pod.
        path = _path(CORE, manifest["metadata"]["namespace"], kind)
        query = {"fieldValidation": "Strict"}
        return await self._request("POST", path, query=query, body=manifest)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """One request, tried again while the server says that it is busy or broken."""
        url = self._url(path, query)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._once(method, url, body)
            except KubeError as error:
                if attempt == _ATTEMPTS - 1 or error.status not in (0, *_RETRIED):
                    raise
                delay = min(error.retry_after, _LONGEST_RETRY_AFTER)
                delay = max(delay, 0.1 * 2**attempt) * random.uniform(0.8, 1.3)
                _log.debug("%s %s: %s; again in %.1f s", method, path, error, delay)
                await asyncio.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> JsonObject:
        if method != "GET":
            await self._limiter.wait()
        async with self._in_flight:
            with _unreachable_as_kube_error():
                response = await self._send(method, url, body, _REQUEST_TIMEOUT)
                async with response:
                    return _answer(await response.read())

    async def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The response to a request, its body unread. Raises KubeError for any status from 400."""
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": self._api.user_agent,
        }
        # Asked for anew each time: tokens of service accounts are exchanged every hour.
        token = await self._api.configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status < 400:
            return response
        async with response:
            raise _error(response.status, await response.read(), response.headers)

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        base = f"{self._api.configuration.host.rstrip('/')}/{path}"
        return f"{base}?{urlencode(query)}" if query else base


def _path(api: str, namespace: str | None, kind: str, name: str | None = None) -> str:
    parts = [
        api,
        *(["namespaces", namespace] if namespace else []),
        kind,
        *([name] if name else []),
    ]
    return "/".join([parts[0], *(quote(part, safe=":") for part in parts[1:])])


def _error(
    status: int, body: bytes | JsonObject, headers: Mapping[str, str] | None = None
) -> KubeError:
    """The error of a response; its body is a Status object when the API server itself made it."""
    told = _decoded(status, body) if isinstance(body, bytes) else body
    after = (headers or {}).get("Retry-After", "")
    reason = str(told.get("reason") or f"HTTP{status}")
    taken = status == 409 and reason == "AlreadyExists"
    kind = AlreadyExistsError if taken else _BY_STATUS.get(status, KubeError)
    return kind(
        status,
        reason,
        str(told.get("message") or ""),
        float(after) if after.isdigit() else 0.0,
    )


def _answer(body: bytes) -> JsonObject:
    try:
        answer: JsonObject = json.loads(body)
    except ValueError as error:
        raise KubeError(200, "NotJson", f"the answer is not JSON: {body[:200]!r}") from error
    return answer


def _decoded(status: int, body: bytes) -> JsonObject:
    with contextlib.suppress(ValueError):
        told = json.loads(body)
        if isinstance(told, dict):
            return told
    return {"message": f"HTTP {status}: {body[:200].decode(errors='replace')}"}


@contextlib.contextmanager
def _unreachable_as_kube_error() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = f"API server: {type(error).__name__}: {error}"
        raise KubeError(0, "Unreachable", said) from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    async with response:
        while line := await response.content.readline():
            yield line
