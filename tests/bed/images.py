"""Building the project's images with buildah and pushing them to the bed's registry.

The layer store is in the cache folder, so a change of code builds and pushes only the layer of the
code. Debian's own files make the base image where no image can be pulled.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import base_image, builds, context, mounts, oci
from .dockerfile import bases, mounted, needed, parse, pin_mounts
from .layers import buildah, store
from .locks import locked
from .prerequisites import IMAGE_PACKAGES, install_packages, require_root
from .settings import Bed, cache_root
from .shell import BedError

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


def _call(command: list[str], doing: str) -> None:
    """Run a command whose output a person may want to follow."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode:
        raise BedError(f"{doing} failed with {done.returncode} (its messages are above)")


class _Source:
    """A Dockerfile with its context: names each stage after all that decides it."""

    def __init__(self, dockerfile: Path, folder: Path) -> None:
        self.text, self.folder = dockerfile.read_text(), folder
        self.stages = parse(self.text)

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
                self._call(pinned, stage, self.helper(stage))
        self._call(pinned, target, name)

    def _call(self, dockerfile: Path, target: str, name: str) -> None:
        command = _build_command(dockerfile, self.folder, target, name)
        _call(command, f"building the image {target}")


def _build_one(bed: Bed, target: str, source: _Source) -> str:
    """Build and push one target unless the registry has it; return the image's name."""
    repository, tag = f"mfsdp/{target}", source.tag(target)
    name = f"{bed.registry}/{repository}:{tag}"
    if oci.exists(bed, repository, tag):
        print(f"{target}: unchanged", file=sys.stderr)
        return name
    install_packages(IMAGE_PACKAGES)
    source.build(target, name)
    push = buildah("push", "--tls-verify=false", "--compression-level", "1", name)
    _call(push, f"pushing {name}")
    return name


def _build(bed: Bed, target: str, dockerfile: Path, folder: Path) -> str:
    if target == "probe":
        return oci.push_binary(bed, "bed/probe", builds.binary("tools", target))
    require_root("python3 tests/bed images")
    if not dockerfile.exists():
        raise BedError(f"{dockerfile} does not exist")
    return _build_one(bed, target, _Source(dockerfile, folder.resolve()))


def build(bed: Bed, targets: Sequence[str], file: Path | None, folder: Path) -> list[str]:
    """Build and push the targets of a Dockerfile; return the images' names."""
    dockerfile = file or folder / "Dockerfile"
    with locked(cache_root() / "images.lock", "another image build"):
        try:
            return [_build(bed, target, dockerfile, folder) for target in targets]
        finally:
            mounts.clear(store())
