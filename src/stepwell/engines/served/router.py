"""Which server answers which conversation: the one that has its earlier turns in the cache.

A new conversation goes to the live server with the fewest requests. It stays there until that server is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from stepwell.core.protocols import Request
from stepwell.engines.served.replica import Replica

_NUM_REMEMBERED = 65_536


class ConversationRouter:
    """Divides requests among replicas."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._homes: OrderedDict[str, Replica] = OrderedDict()

    def split_requests(self, requests: Sequence[Request]) -> list[tuple[Replica, list[int]]]:
        """The indices of the requests for each live replica. Empty if none is live."""
        live = [replica for replica in self._replicas if replica.is_live]
        if not live:
            return []
        loads = {id(replica): replica.num_inflight for replica in live}
        found: dict[int, tuple[Replica, list[int]]] = {}
        for number, request in enumerate(requests):
            home = self._homes.get(request.conversation) if request.conversation is not None else None
            if home is None or not home.is_live:
                home = min(live, key=lambda replica: loads[id(replica)])
            if request.conversation is not None:
                self._remember(request.conversation, home)
            loads[id(home)] += 1
            found.setdefault(id(home), (home, []))[1].append(number)
        return list(found.values())

    def forget_all(self) -> None:
        """Conversations may go anywhere again."""
        self._homes.clear()

    def _remember(self, conversation: str, home: Replica) -> None:
        self._homes[conversation] = home
        self._homes.move_to_end(conversation)
        if len(self._homes) > _NUM_REMEMBERED:
            self._homes.popitem(last=False)
