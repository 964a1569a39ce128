"""Building the bed's programs from Go modules into the cache.

Each piece (one Go module under ``go/``) goes into a folder named by a hash of all that decides the
result: its module files, sources and flags. Building happens beside that folder and a rename
publishes it, so an interrupted build leaves nothing half made and every checkout finds what another
one built.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from . import prune
from .locks import locked
from .prerequisites import BUILD_PACKAGES, install_packages, require_go, require_space
from .progress import Progress, duration
from .settings import KUBERNETES_VERSION, cache_root
from .shell import BedError, tail

SOURCES = Path(__file__).resolve().parent / "go"
AT_ONCE = 2


def _kubernetes_flags() -> str:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    values = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{k}={v}" for package in packages for k, v in values.items())


@dataclass(frozen=True)
class Piece:
    """One Go module of ours and the binaries that come out of it."""

    name: str
    target: str  # `tool`: what go.mod's tool lines name; `./...`: programs of the bed's own
    binaries: tuple[str, ...]
    link_flags: str = ""
    tags: str = ""
    cgo: bool = False

    @property
    def source(self) -> Path:
        return SOURCES / self.name

    def command(self, out: Path) -> list[str]:
        flags = f"-s -w {self.link_flags}".strip()
        return ["go", "build", "-trimpath", "-tags", self.tags, "-ldflags", flags,
                "-o", f"{out}/", self.target]  # fmt: skip

    def folder(self) -> Path:
        """Return where the binaries are, or will be once built."""
        digest = hashlib.sha256(platform.machine().encode())
        digest.update("\0".join([*self.command(Path("out")), str(self.cgo)]).encode())
        for path in sorted(self.source.rglob("*")):
            if path.suffix in {".mod", ".sum", ".go"}:
                digest.update(f"{path.relative_to(self.source)}\0".encode())
                digest.update(path.read_bytes())
        return cache_root() / "bin" / f"{self.name}-{digest.hexdigest()[:12]}"


PIECES = (
    Piece(
        "kubernetes",
        "tool",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
         "kubectl"),
        _kubernetes_flags(),
    ),
    Piece(
        "containerd",
        "tool",
        ("containerd", "containerd-shim-runc-v2", "ctr"),
        "-X github.com/containerd/containerd/v2/version.Version=v2.4.2",
    ),
    Piece("runc", "tool", ("runc",), "-X main.version=1.5.3", tags="seccomp", cgo=True),
    Piece("etcd", "./...", ("etcd",)),
    Piece("coredns", "./...", ("coredns",)),
    Piece("registry", "./...", ("registry",)),
    Piece("tools", "./...", ("pause", "forward", "probe")),
    Piece(
        "helm", "tool", ("helm",), "-X helm.sh/helm/v3/internal/version.version=v3.22.0"
    ),
)  # fmt: skip
BY_NAME = {piece.name: piece for piece in PIECES}


def binary(piece: str, name: str) -> Path:
    """Return the path of a built binary."""
    return BY_NAME[piece].folder() / name


def find(name: str) -> Path | None:
    """Return the path of a program of any piece, or None when it is not built (or not ours)."""
    found = [piece.folder() / name for piece in PIECES if name in piece.binaries]
    return found[0] if found and found[0].exists() else None


def _built(piece: Piece) -> bool:
    return all((piece.folder() / name).exists() for name in piece.binaries)


@dataclass
class _Build:
    """A running `go build`."""

    piece: Piece
    out: Path
    log: Path
    process: subprocess.Popen[bytes]
    started: float

    @classmethod
    def start(cls, piece: Piece) -> "_Build":
        final = piece.folder()
        out = final.with_name(f".{final.name}.building")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        log = out / "build.log"
        # GOWORK: a go.work in a parent folder of the checkout must not take over.
        env = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "1" if piece.cgo else "0"}
        with log.open("wb") as sink:
            process = subprocess.Popen(
                piece.command(out), cwd=piece.source, env=env, stdout=sink, stderr=sink
            )
        return cls(piece, out, log, process, monotonic())

    def publish(self) -> None:
        """Check the result and make it visible under its final name."""
        absent = [name for name in self.piece.binaries if not (self.out / name).exists()]
        if self.process.returncode or absent:
            raise BedError(
                f"building {self.piece.name} failed (in {self.piece.source}); "
                f"missing: {', '.join(absent) or 'nothing'}; the compiler's last lines:\n"
                + tail(self.log, 25)
            )
        final = self.piece.folder()
        shutil.rmtree(final, ignore_errors=True)
        self.out.rename(final)


def _build_all(todo: list[Piece], progress: Progress) -> None:
    """Build at most two pieces at a time: Go itself keeps every core busy in between."""
    waiting, running, total = list(todo), list[_Build](), len(todo)
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_Build.start(waiting.pop(0)))
            for build in [b for b in running if b.process.poll() is not None]:
                running.remove(build)
                build.publish()
                took = duration(monotonic() - build.started)
                progress.line(f"built {build.piece.name} in {took}")
            names = ", ".join(build.piece.name for build in running)
            progress.note(f"{total - len(waiting) - len(running)} of {total} done, now {names}")
            sleep(0.1)
    finally:
        for build in running:
            build.process.terminate()
            build.process.wait()


def build_missing(progress: Progress, names: Sequence[str]) -> None:
    """Build the named pieces that are not in the cache yet; a no-op when all of them are."""
    pieces = [BY_NAME[name] for name in names]
    for piece in filter(_built, pieces):
        os.utime(piece.folder())  # in use: what is pruned is what was not used for longest
    if all(map(_built, pieces)):
        return
    with locked(cache_root() / "bin" / ".lock", "another build"):
        missing = [piece for piece in pieces if not _built(piece)]
        if not missing:
            return
        require_go()
        require_space(cache_root(), 8, "building Kubernetes (with Go's caches)")
        if any(piece.cgo for piece in missing):
            install_packages(BUILD_PACKAGES)
        _build_all(missing, progress)
        for piece in missing:
            prune.programs(piece.folder().parent, piece.name)
