"""The operator's process: kopf's handlers, each a line or two, and the entry `mfsdp-operator`.

kopf brings the login, the watch of jobs and the life of the process. Its handlers for changes, its
timers, daemons, indices and finalizers stay unused: they write into every object, or grow with
their number squared. `on.event` only hands over; the work is done by `runtime`.
"""

import argparse
import logging
import os
import sys
from typing import Any

import kopf

from .api.names import GROUP, PLURAL, VERSION
from .kube import kopf_login
from .runtime import Runtime
from .settings import PREFIX, Settings, SettingsError


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Configure kopf, and start the operator proper."""
    configure_kopf(settings)
    memo.runtime = await Runtime.start(Settings.from_env())
    # A list in pages would end the process when a page comes too late (410), and one in a single
    # piece takes much memory: from 1.34 on the watch itself begins with what exists.
    settings.watching.initial_streaming = memo.runtime.server_version >= (1, 34)


@kopf.on.cleanup()
async def stop(memo: Any, **_: Any) -> None:
    """Stop what `start` started."""
    if runtime := memo.get("runtime"):
        await runtime.stop()


@kopf.on.login()
async def login(**_: Any) -> kopf.ConnectionInfo:
    """One login for kopf and for us."""
    return await kopf_login()


@kopf.on.event(GROUP, VERSION, PLURAL)
async def job_event(event: Any, memo: Any, **_: Any) -> None:
    """A job appeared, changed or went. Handed over; nothing else happens here."""
    memo.runtime.job_event(event["type"], dict(event["object"]))


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """No writes of kopf's own, no discovery after the start, watches that end and begin anew."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 360
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.enforce_retry_after = True
    settings.queueing.idle_timeout = 2


def main() -> None:
    """Run the operator until it is told to stop."""
    argparse.ArgumentParser(
        prog="mfsdp-operator",
        description="Runs MegatronFSDPJobs. Configured by environment variables:\n\n"
        + "\n".join(
            f"  {PREFIX}{name.upper()}\n      {' '.join((field.description or '').split())}"
            for name, field in Settings.model_fields.items()
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        sys.exit(f"mfsdp-operator: {error}")
    # kopf tells of every event that a handler took; we tell what came of it.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    kopf.configure(
        debug=settings.log_level == "debug",
        quiet=settings.log_level == "warning",
        log_format=kopf.LogFormat[settings.log_format.upper()],
    )
    # kopf asks who we are; a container's user need not have a name.
    os.environ.setdefault("LOGNAME", "mfsdp-operator")
    memo = kopf.Memo()
    kopf.run(
        memo=memo,
        standalone=True,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
    )
    runtime = memo.get("runtime")
    if runtime is None or runtime.trouble:
        logging.getLogger(__name__).critical("ended: %s", runtime and runtime.trouble)
        sys.exit(1)
