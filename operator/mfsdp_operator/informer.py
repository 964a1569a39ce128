"""Keeps what exists: a list and watch of one kind of object, by label, as small views.

What the client's own watch and kopf's both lack is here: back-off, going on from the last bookmark,
a relist after 410 that is compared with what was known (an object that went unseen is taken out and
its job looked at), and reads that include our own writes.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .kube import GoneError, Kube, KubeError

_log = logging.getLogger(__name__)
_FIRST_DELAY = 0.2
_LAST_DELAY = 20.0


class View(Protocol):
    """What a store needs to know of an object."""

    @property
    def namespace(self) -> str: ...  # noqa: D102
    @property
    def uid(self) -> str: ...  # noqa: D102
    @property
    def resource_version(self) -> str: ...  # noqa: D102
    @property
    def controller_uid(self) -> str: ...  # noqa: D102


class Store[V: View]:
    """Views by uid, and by the uid of their job."""

    def __init__(self, changed: Callable[[V], None]) -> None:
        self._changed = changed
        self._views: dict[str, V] = {}
        self._by_owner: defaultdict[str, dict[str, V]] = defaultdict(dict)
        self._deleted: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[V]:
        return iter(tuple(self._views.values()))

    def of(self, owner: str) -> tuple[V, ...]:
        """All views whose controller has this uid."""
        return tuple(self._by_owner.get(owner, {}).values())

    def put(self, view: V) -> None:
        """An object was seen, in a watch or in the answer to a write of ours, in any order."""
        known = self._views.get(view.uid)
        if view.uid in self._deleted or (known and _number(known) >= _number(view)):
            return
        self._views[view.uid] = view
        self._by_owner[view.controller_uid][view.uid] = view
        self._changed(view)

    def remove(self, uid: str, version: int) -> None:
        """An object is gone."""
        self._deleted[uid] = version
        view = self._views.pop(uid, None)
        if view is None:
            return
        siblings = self._by_owner[view.controller_uid]
        siblings.pop(uid, None)
        if not siblings:
            del self._by_owner[view.controller_uid]
        self._changed(view)

    def forget(self, uid: str) -> None:
        """A write of ours has learned that an object is gone."""
        view = self._views.get(uid)
        if view is not None:
            self.remove(uid, _number(view))

    def replace(self, views: list[V], version: int, namespace: str | None) -> None:
        """A list as of a version: what it does not have is gone, unless it is newer."""
        present = {view.uid for view in views}
        for view in self:
            mine = namespace in (None, view.namespace)
            if mine and view.uid not in present and _number(view) <= version:
                self.remove(view.uid, version)
        for view in views:
            self.put(view)
        # Answers to writes are not that late: graves older than the last list are closed.
        self._deleted = {uid: at for uid, at in self._deleted.items() if at >= version}


def _number(view: View) -> int:
    """resourceVersions compare as numbers (guaranteed since Kubernetes 1.35)."""
    return int(view.resource_version)


class Informer[V: View]:
    """Fills a store from the API server, for ever."""

    def __init__(
        self,
        kube: Kube,
        store: Store[V],
        view: Callable[[dict[str, Any]], V | None],
        *,
        api: str,
        kind: str,
        namespace: str | None,
        selector: str,
    ) -> None:
        self._kube = kube
        self._store = store
        self._view = view
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._version = ""
        self._delay = _FIRST_DELAY
        self.synced = asyncio.Event()
        """The store holds what the API server holds."""

    async def run(self) -> None:
        """List, then watch; after an error go on, from the same place where that is possible."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except GoneError:
                _log.info("%s: the watch is too far behind; listing anew", self._kind)
                self._version = ""
                await asyncio.sleep(random.uniform(0, _FIRST_DELAY))
            except KubeError as error:
                _log.warning("watch of %s: %s; again in %.1f s", self._kind, error, self._delay)
                await asyncio.sleep(self._delay * random.uniform(0.7, 1.3))
                self._delay = min(self._delay * 2, _LAST_DELAY)

    async def _list(self) -> None:
        where = (self._api, self._namespace, self._kind, self._selector)
        items, version = await self._kube.list_all(*where)
        views = [view for item in items if (view := self._view(item)) is not None]
        self._store.replace(views, int(version), self._namespace)
        self._version = version
        self.synced.set()

    async def _watch(self) -> None:
        where = (self._api, self._namespace, self._kind, self._selector)
        async for event, item in self._kube.watch(*where, self._version):
            self._take(event, item)
            self._version = item["metadata"]["resourceVersion"]
            self._delay = _FIRST_DELAY

    def _take(self, event: str, item: dict[str, Any]) -> None:
        meta = item["metadata"]
        if event == "DELETED":
            self._store.remove(meta["uid"], int(meta["resourceVersion"]))
        elif event != "BOOKMARK" and (view := self._view(item)) is not None:
            self._store.put(view)
