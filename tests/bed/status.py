"""`status`: one line per component, for people; healthy or not, for scripts."""

from concurrent.futures import ThreadPoolExecutor

from . import cluster
from .components import Component, pid_of
from .settings import Bed
from .shell import tail


def _row(component: Component) -> tuple[str, str, str, str]:
    pid = pid_of(component)
    if pid is None:
        said = tail(component.log, 1).strip()
        return component.name, "stopped", "", f"last said: {said}"
    why = component.problem()
    return component.name, "unhealthy" if why else "healthy", str(pid), why or ""


def show(bed: Bed) -> bool:
    """Print the table and return whether everything is healthy."""
    if not bed.run.exists():
        print(f"bed {bed.name} is down: `python3 tests/bed --name {bed.name} up` starts it")
        return False
    components = cluster.components(bed)
    with ThreadPoolExecutor() as pool:
        rows = list(pool.map(_row, components))
    print(f"bed {bed.name}: Kubernetes at {bed.api_local}, images at {bed.registry}, "
          f"nodes on {bed.prefix}.0.0/24")  # fmt: skip
    for name, state, pid, detail in rows:
        print(f"{name:<20} {state:<10} {pid:>8}  {detail[:300]}".rstrip())
    healthy = all(state == "healthy" for _, state, _, _ in rows)
    if not healthy:
        print("not healthy: `python3 tests/bed up` starts what is missing")
    return healthy
