"""What is sent to the API server, and what becomes of its answer; tests/cluster asks a real one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.aio import client
from tests.unit.operator.views import built_in, job

from mfsdp_operator.actor import Actor, Refused
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.builders.config_map import build_config_map
from mfsdp_operator.informer import Store
from mfsdp_operator.kube import Kube
from mfsdp_operator.limiter import Limiter
from mfsdp_operator.reconcile.state import CreateConfigMap, CreatePods

STRICT = (
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
    '"spec.volumes[0].persistentVolumeclaim"'
)


class _ApiServer(BaseHTTPRequestHandler):
    """Makes what it is asked for, but for pods: of a strict request it finds a field unknown."""

    posted: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = urlsplit(self.path)
        self.posted.append(url.path.rpartition("/")[2])
        strict = parse_qs(url.query).get("fieldValidation") == ["Strict"]
        if url.path.endswith("/pods") and strict:
            said = {"kind": "Status", "reason": "BadRequest", "message": STRICT, "code": 400}
            self._answer(400, json.dumps(said).encode())
        else:
            self._answer(201, body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def api_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and what was posted to it."""
    posted: list[str] = []
    handler = type("Handler", (_ApiServer,), {"posted": posted})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()
        thread.join()


async def test_a_field_that_does_not_exist_is_refused_once_and_for_good() -> None:
    view = job(
        built_in(template={"spec": {"volumes": [{"name": "a", "persistentVolumeclaim": 1}]}})
    )
    spec = JobSpec.model_validate(view.spec)
    pin = build_config_map(view.meta, spec, resolve(spec), "trainer")
    with api_server() as (url, posted):
        configuration = client.Configuration()
        configuration.host = url
        kube = Kube(client.ApiClient(configuration), Limiter(100, 100))
        actor = Actor(kube, Store(lambda _: None), Store(lambda _: None))
        actions = [CreateConfigMap(pin), CreatePods(1, (0,))]
        with pytest.raises(Refused) as caught:
            await actor.carry_out(view.meta, actions)
        await kube.close()
    assert (caught.value.reason, caught.value.permanent) == ("CreateInvalid", True)
    assert STRICT in str(caught.value)
    assert posted == ["configmaps", "pods"]
