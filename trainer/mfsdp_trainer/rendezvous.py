"""How the workers of a gang find each other: one store, served by rank 0, with errors to act on.

Used in the worker, after its imports: nodes that come late cost nobody the time of theirs.
"""

import os
import re
import socket
import time
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from .contract import Env
from .errors import RendezvousError, one_line

_USUAL_TIMEOUT = timedelta(minutes=30)
"""Patience of the store once all have met; torch's own default for process groups."""


def meet() -> Store:
    """The gang's store, once every rank has come to it. Collective.

    Waits MFSDP_RENDEZVOUS_TIMEOUT seconds (600). Raises RendezvousError naming host and port.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun serves the store
        store: Store = next(iter(rendezvous("env://")))[0]
        return store
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = float(os.environ.get(Env.RENDEZVOUS_TIMEOUT) or 600)
    if rank:
        wait_for_port(host, port, timeout)
    try:
        store = TCPStore(host, port, size, rank == 0, timedelta(seconds=timeout))
    except (DistError, RuntimeError) as error:
        raise RendezvousError(_explain(str(error), host, port, timeout)) from error
    store.set_timeout(_USUAL_TIMEOUT)
    return store


def wait_for_port(host: str, port: int, timeout: float) -> None:
    """Wait until the name of rank 0's host resolves and its port answers.

    Raises RendezvousError after `timeout` seconds. torch's own client would fill the log instead.
    """
    deadline = time.monotonic() + timeout
    pause = 0.05
    while True:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except socket.gaierror as error:
            problem = f"its name does not resolve ({error.strerror})"
        except OSError as error:
            problem = f"its port does not answer ({error.strerror or error})"
        else:
            return
        if time.monotonic() + pause > deadline:
            raise RendezvousError(
                f"node rank 0 at {host}:{port} was not there within {timeout:g} s: {problem}; "
                "see why the pod of node rank 0 does not run"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _explain(text: str, host: str, port: int, timeout: float) -> str:
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return f"port {port} is in use on the host of node rank 0: choose another MASTER_PORT"
    if joined := re.search(r"(\d+)/(\d+) clients joined", text):
        return (
            f"only {joined[1]} of {joined[2]} ranks came to {host}:{port} within {timeout:g} s: "
            "see why the pods of the others do not run"
        )
    return f"cannot meet the other ranks at {host}:{port}: {one_line(text, 300)}"
