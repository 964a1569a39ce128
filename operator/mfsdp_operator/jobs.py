"""The jobs that are known, as the API server last sent them."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Raw = dict[str, Any]


class Key(NamedTuple):
    """Which job."""

    namespace: str
    name: str


def key_of(manifest: Raw) -> Key:
    """The key of a job."""
    meta = manifest["metadata"]
    return Key(meta["namespace"], meta["name"])


class Jobs:
    """Job manifests by key; the newest of each."""

    def __init__(self) -> None:
        self._manifests: dict[Key, Raw] = {}
        self._by_uid: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._manifests)

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._manifests))

    def get(self, key: Key) -> Raw | None:
        """The job; None if there is none."""
        return self._manifests.get(key)

    def key_by_uid(self, uid: str) -> Key | None:
        """Which job has this uid."""
        return self._by_uid.get(uid)

    def put(self, manifest: Raw) -> bool:
        """A job was seen, by the watch or in the answer to a write; the watch lags behind.

        Returns whether that was news.
        """
        key = key_of(manifest)
        known = self._manifests.get(key)
        if known is not None and _version(known) >= _version(manifest):
            return False
        if known is not None:
            self._by_uid.pop(known["metadata"]["uid"], None)
        # A third of an object, and nobody reads it.
        meta = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
        self._by_uid[meta["uid"]] = key
        self._manifests[key] = {**manifest, "metadata": meta}
        return True

    def remove(self, key: Key, uid: str = "") -> None:
        """A job is gone; with a uid, that one and not a new one under its name."""
        known = self._manifests.get(key)
        if known is not None and uid in ("", known["metadata"]["uid"]):
            del self._manifests[key]
            self._by_uid.pop(known["metadata"]["uid"], None)

    def replace(self, manifests: Iterable[Raw], version: int, namespace: str | None) -> list[Key]:
        """A list as of a version. Returns the keys of jobs that came, changed or went unseen."""
        listed = {key_of(manifest): manifest for manifest in manifests}
        changed = []
        for key, known in tuple(self._manifests.items()):
            mine = namespace in (None, key.namespace)
            if mine and key not in listed and _version(known) <= version:
                self.remove(key)
                changed.append(key)
        return changed + [key for key, manifest in listed.items() if self.put(manifest)]


def _version(manifest: Raw) -> int:
    return int(manifest["metadata"]["resourceVersion"])
