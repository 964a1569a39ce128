"""Collects orphans: as PID 1 we are the parent of whatever a worker left behind.

The workers themselves are left to `Workers`, which needs their exit codes.
"""

import os
from collections.abc import Collection


def reap_orphans(workers: Collection[int]) -> int:
    """Collect ended children other than the workers; returns how many. Never waits."""
    count = 0
    while True:
        try:
            # Looks without collecting: the next ended child may be a worker.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return count
        if ended is None or ended.si_pid in workers:
            return count
        os.waitpid(ended.si_pid, os.WNOHANG)
        count += 1
