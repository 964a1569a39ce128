"""PID 1's small HTTP server: /progress, /metrics, /healthz. Reads files, waits for no worker."""

import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from mfsdp_trainer.errors import ConfigError

from .view import View

_CONNECTIONS: Final = 32
_log = logging.getLogger(__name__)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, view: View) -> None:
        self.view = view
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        dual_stack = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual_stack else socket.AF_INET
        super().__init__(("::" if dual_stack else "", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's, which looks up the name of this host: DNS may be slow or absent.
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "", self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Turn away whoever finds too many connections open: threads are not free."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection, then make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        _log.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0
    server: _Server

    def do_GET(self) -> None:
        """Answer one of the three paths."""
        path = self.path.partition("?")[0]
        if path == "/progress":
            text = self.server.view.progress().model_dump_json(by_alias=True)
            self._answer(text.encode(), "application/json")
        elif path == "/metrics":
            from .metrics import render  # 100 ms to import: only where someone scrapes

            self._answer(*render(self.server.view, self.headers.get("Accept", "")))
        elif path == "/healthz":
            self._answer(b"ok\n", "text/plain; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "try /progress, /metrics or /healthz")

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Polls every two seconds are not worth a line each."""


def serve(port: int, view: View) -> None:
    """Serve in daemon threads for the rest of the process. Raises ConfigError: port in use."""
    try:
        server = _Server(port, view)
    except OSError as error:
        raise ConfigError(
            f"logging.port {port} cannot be served ({error.strerror}): another process of this "
            "machine or pod has it; choose another logging.port"
        ) from None
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
