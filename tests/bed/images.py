"""Building the project's images with buildah and pushing them to the bed's registry.

The layer store is in the cache folder, so a change of code builds and pushes only the layer of the code.
Debian's own files make the base image where no image can be pulled.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import base_image, builds, context, mounts, oci
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
        "--isolation", "oci", "--runtime", builds.binary("runc", "runc"), *volumes,
        "--target", target, "--file", dockerfile, "--tag", name, folder,
    )  # fmt: skip


def _call(command: list[str], doing: str) -> None:
    """Run a command whose output a person may want to follow."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode:
        raise BedError(f"{doing} failed with {done.returncode} (its messages are above)")


def _build_one(bed: Bed, target: str, dockerfile: Path, folder: Path) -> str:
    """Build and push one target unless the registry has it; return the image's name."""
    repository = f"mfsdp/{target}"
    tag = context.fingerprint(dockerfile, folder, target, base_image.SALT)
    name = f"{bed.registry}/{repository}:{tag}"
    if oci.exists(bed, repository, tag):
        print(f"{target}: unchanged", file=sys.stderr)
        return name
    install_packages(IMAGE_PACKAGES)
    for base in context.bases(context.parse(dockerfile.read_text())):
        base_image.ensure(base)
    _call(_build_command(dockerfile, folder, target, name), f"building the image {target}")
    push = buildah("push", "--tls-verify=false", "--compression-level", "1", name)
    _call(push, f"pushing {name}")
    return name


def build(bed: Bed, targets: Sequence[str], file: Path | None, folder: Path) -> list[str]:
    """Build and push the targets of a Dockerfile; return the images' names."""
    named: list[str] = []
    dockerfile = file or folder / "Dockerfile"
    with locked(cache_root() / "images.lock", "another image build"):
        try:
            for target in targets:
                if target == "probe":
                    named.append(oci.push_binary(bed, "bed/probe", builds.binary("tools", target)))
                    continue
                require_root("python3 tests/bed images")
                if not dockerfile.exists():
                    raise BedError(f"{dockerfile} does not exist")
                named.append(_build_one(bed, target, dockerfile, folder.resolve()))
        finally:
            mounts.clear(store())
    return named
