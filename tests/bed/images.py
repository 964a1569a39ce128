"""Building the project's images with buildah and pushing them to the bed's registry.

The layer store is in the cache folder, so a change of code builds and pushes only the layer of the
code. Debian's own files make the base image where no image can be pulled.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import sleep

from . import base_image, builds, context, mounts, oci, prune
from .dockerfile import bases, mounted, needed, parse, pin_mounts
from .layers import buildah, store
from .locks import locked
from .prerequisites import IMAGE_PACKAGES, install_packages, require_root, require_space
from .progress import Progress
from .settings import Bed, cache_root
from .shell import BedError, tail

REPOSITORY = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs")


def _uv_cache() -> Path:
    given = os.environ.get("UV_CACHE_DIR")
    if given:
        return Path(given).absolute()
    return cache_root().parents[1] / "uv"


def _build_command(dockerfile: Path, folder: Path, target: str, name: str) -> list[str]:
    wheels = _uv_cache()
    wheels.mkdir(parents=True, exist_ok=True)
    volumes = ["-v", f"{wheels}:/root/.cache/uv"]
    if CERTIFICATES.is_dir():  # a machine behind a proxy trusts authorities of its own
        volumes += ["-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    return buildah(
        "build", "--pull-never", "--layers", "--network", "host", "--format", "oci",
        "--isolation", "chroot", *volumes,
        "--target", target, "--file", dockerfile, "--tag", name, folder,
    )  # fmt: skip


def _call(command: list[str], title: str, log: Path, progress: Progress) -> None:
    """Run one command of a build, with its output in a log and its latest line on the screen."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        while process.poll() is None:
            progress.note(f"{title}: {tail(log, 1).strip()[:100]}")
            sleep(0.1)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        raise BedError(f"{title} failed, see {log}; its last lines:\n{tail(log, 25)}")


class _Source:
    """A Dockerfile with its context: names each stage after all that decides it."""

    def __init__(self, dockerfile: Path, folder: Path, logs: Path, progress: Progress) -> None:
        if not dockerfile.exists():
            raise BedError(f"{dockerfile} does not exist")
        self.text, self.folder = dockerfile.read_text(), folder.resolve()
        self.stages = parse(self.text)
        self.logs, self.progress = logs, progress

    def tag(self, stage: str) -> str:
        return context.fingerprint(self.stages, stage, self.folder, base_image.SALT)

    def helper(self, stage: str) -> str:
        """Return the name of a stage's image that is only there for others to mount."""
        return f"localhost/mfsdp-stage/{stage}:{self.tag(stage)}"

    def build(self, target: str, name: str) -> None:
        """Build a target in our store, under a name, after the stages that it mounts."""
        for base in bases(needed(self.stages, target)):
            base_image.ensure(base)
        pinned = store() / "Dockerfile"
        pinned.write_text(pin_mounts(self.text, self.helper))
        for stage in mounted(self.stages, target):
            if not base_image.present(self.helper(stage)):
                self._build(pinned, stage, self.helper(stage))
        self._build(pinned, target, name)

    def _build(self, dockerfile: Path, target: str, name: str) -> None:
        command = _build_command(dockerfile, self.folder, target, name)
        self.call(command, f"building {target}", f"build-{target}")

    def call(self, command: list[str], title: str, log: str) -> None:
        """Run a command with its output in a log of the bed."""
        _call(command, title, self.logs / f"image-{log}.log", self.progress)


def _build_one(bed: Bed, target: str, source: _Source) -> str:
    """Build and push one target unless the registry has it; return the image's name."""
    repository, tag = f"mfsdp/{target}", source.tag(target)
    name = f"{bed.registry}/{repository}:{tag}"
    if not oci.exists(bed, repository, tag):
        install_packages(IMAGE_PACKAGES)
        if not store().exists():
            require_space(cache_root(), 25, "layers, registry and two nodes' copies of the images")
        source.build(target, name)
        push = buildah("push", "--tls-verify=false", "--compression-level", "1", name)
        source.call(push, f"pushing {name}", f"push-{target}")
    return name


def build(bed: Bed, targets: Sequence[str], file: Path | None, folder: Path) -> list[str]:
    """Build and push the targets of a Dockerfile; return the images' names."""
    require_root("python3 tests/bed images")
    progress, names = Progress(len(targets)), list[str]()
    source = _Source(file or folder / "Dockerfile", folder, bed.log("").parent, progress)
    with locked(cache_root() / "images.lock", "another image build"):
        try:
            for target in targets:
                with progress.step(f"image {target}"):
                    names.append(_build_one(bed, target, source))
            if store().exists():
                prune.images()
        finally:
            mounts.clear(store())
    return names


def push_probe(bed: Bed) -> str:
    """Push the tiny image for tests of the network and return its name."""
    return oci.push_binary(bed, "bed/probe", builds.binary("tools", "probe"))
