"""One task at a time beside the training."""

import threading
from collections.abc import Callable


class Background:
    """Runs a task in a thread; its error waits for whoever asks."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task. The one before must be finished."""
        assert self._thread is None
        # A daemon: a rank that ends on an error of its own must not stay for a save that others
        # will never complete.
        self._thread = threading.Thread(target=self._run, args=(task,), name="save", daemon=True)
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - the boundary: raised again by `finish`
            self._error = error

    @property
    def busy(self) -> bool:
        """Whether a task runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether a task ended with an error that nobody was told yet."""
        return self._error is not None

    def finish(self) -> None:
        """Wait for the task, if there is one. Raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
