"""/livez and /readyz of the operator. kopf's own endpoint says only that one of its tasks runs."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

_log = logging.getLogger(__name__)


class Probes:
    """A small HTTP server. `alive` and `ready` answer with what is wrong, or nothing."""

    def __init__(self, port: int, alive: Callable[[], str], ready: Callable[[], str]) -> None:
        app = web.Application()
        app.add_routes([web.get("/livez", _probe(alive)), web.get("/readyz", _probe(ready))])
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self._port = port

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        await web.TCPSite(self._runner, port=self._port).start()
        _log.info("probes at port %d", self._port)

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


def _probe(check: Callable[[], str]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(status=503 if wrong else 200, text=(wrong or "ok") + "\n")

    return answer
