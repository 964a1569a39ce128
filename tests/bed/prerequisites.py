"""What the bed needs from the machine, and how to get what is missing.

Debian packages are installed where that is possible (root and apt); a Go toolchain is not, because
distributions' own are mostly too old.
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from .shell import BedError

CNI_FOLDER = Path("/usr/lib/cni")
SECCOMP_HEADER = Path("/usr/include/seccomp.h")
GO_NEEDED = (1, 26)

# Debian package -> the command or file that shows it is there.
RUNTIME_PACKAGES: dict[str, str] = {
    "iproute2": "ip",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "util-linux": "nsenter",
    "openssl": "openssl",
    "containernetworking-plugins": str(CNI_FOLDER / "ptp"),
}
BUILD_PACKAGES: dict[str, str] = {
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "pkg-config": "pkg-config",
    "libseccomp-dev": str(SECCOMP_HEADER),
}
IMAGE_PACKAGES: dict[str, str] = {"buildah": "buildah", "debootstrap": "debootstrap"}


def _present(witness: str) -> bool:
    return Path(witness).exists() if witness.startswith("/") else shutil.which(witness) is not None


def require_root(command: str) -> None:
    """Raise unless run as root: namespaces, mounts and cgroups need it."""
    if platform.system() != "Linux":
        raise BedError("the embedded cluster needs Linux; elsewhere set KUBECONFIG to your own")
    if os.geteuid() != 0:
        raise BedError(
            f"`{command}` makes network namespaces, mounts and cgroups and so needs root: "
            f"run it with `sudo -E`, or set KUBECONFIG to a cluster of your own"
        )


def install_packages(packages: dict[str, str]) -> None:
    """Install what is missing, or raise saying what to install."""
    missing = [name for name, witness in packages.items() if not _present(witness)]
    if not missing:
        return
    hint = f"install the packages that hold them, on Debian: apt-get install {' '.join(missing)}"
    wanted = ", ".join(packages[name] for name in missing)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise BedError(f"missing on this machine: {wanted}; {hint}")
    quiet = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [*quiet, "install", "-y", "--no-install-recommends", *missing]
    done = subprocess.run(install, env=env, capture_output=True, text=True, check=False)
    if done.returncode:  # most often: the package lists are old or were never fetched
        subprocess.run([*quiet, "update"], env=env, capture_output=True, check=False)
        done = subprocess.run(install, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"apt-get could not install {' '.join(missing)}: {done.stderr.strip()}")
    still = [packages[name] for name in missing if not _present(packages[name])]
    if still:
        raise BedError(f"installed {' '.join(missing)}, yet missing: {', '.join(still)}")


def require_space(folder: Path, gigabytes: int, what: str) -> None:
    """Raise unless there is room for `what` on the disk of a folder."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise BedError(
            f"{what} needs about {gigabytes} GB and {folder} has {free:.1f} GB left: free some, or "
            "set XDG_CACHE_HOME to a folder on a larger disk"
        )


def require_go() -> None:
    """Raise unless there is a Go toolchain that can build the bed."""
    wanted = ".".join(map(str, GO_NEEDED))
    how = f"get Go {wanted} or newer from the Go project's download page and put it on PATH"
    if shutil.which("go") is None:
        raise BedError(f"`go` is not on PATH: {how}")
    reported = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"], capture_output=True, text=True, check=False
    )
    version = re.match(r"go(\d+)\.(\d+)", reported.stdout)
    found = (int(version[1]), int(version[2])) if version else (0, 0)
    # From 1.21 on, Go fetches the toolchain that a go.mod asks for, unless told not to.
    fetches = found >= (1, 21) and "local" not in reported.stdout.split()
    if found < GO_NEEDED and not fetches:
        raise BedError(f"`go` is {reported.stdout.split()[0]}, too old: {how}")
