"""Whose turn it is when room is short: what is kept free, and which leases come back.

Pure, and changes nothing: it reads what `LeaseTable` keeps.
"""

from __future__ import annotations

from typing import Final

from sparkray.agent.state.bundles import Bundle, BundleKey, Bundles
from sparkray.agent.state.devices import Devices
from sparkray.agent.state.events import AskBack, Effect
from sparkray.agent.state.nodes import ClusterMap
from sparkray.agent.state.queues import Request, WaitingRoom
from sparkray.agent.state.rotation import Held, Rotation
from sparkray.resources import CPU, GPU, fits

#: A request that never fits beside smaller ones has the node kept free for it then.
STARVING_AFTER_S: Final = 1.0


class Fairness:
    """Looks at the requests that wait and the leases that are held on one node.

    Args:
        min_hold_s: how long a lease is left alone.
    """

    def __init__(
        self,
        cluster: ClusterMap,
        bundles: Bundles,
        devices: Devices,
        waiting: WaitingRoom,
        held: dict[bytes, Held],
        min_hold_s: float,
    ) -> None:
        self._cluster, self._bundles, self._devices = cluster, bundles, devices
        self._available = cluster.own.available
        self._waiting, self._held = waiting, held
        self._min_hold_s = min_hold_s

    def starving(self, now: float) -> Request | None:
        """Return the request that the node is kept free for at the moment.

        Only in the first half of each doubling of its waiting time: if what is in its
        way does not end, the others must not wait for ever either.
        """
        oldest: Request | None = None
        for queue in self._waiting.queues():
            request = queue.head()
            waited = now - request.arrived
            if request.group:
                continue
            if waited < STARVING_AFTER_S or request.spilled or request.capped_since:
                continue
            if self._fits_now(request) or not self.could_be_here(request):
                continue
            if oldest is None or request.arrived < oldest.arrived:
                oldest = request
        if oldest is None or self._waiting.deeper_than(oldest):
            return None
        waited = (now - oldest.arrived) / STARVING_AFTER_S
        doubling: float = 2 ** (int(waited).bit_length() - 1)
        return oldest if waited < 1.5 * doubling else None

    def ask_back(self, now: float) -> list[Effect]:
        heads = [queue.head() for queue in self._waiting.queues()]
        waiting = [request for request in heads if self._waits_for_room(request)]
        pools: dict[BundleKey | None, list[Request]] = {}
        for request in waiting:
            pools.setdefault(self._pool_of(request), []).append(request)
        return [
            AskBack(held.worker_id)
            for key, requests in pools.items()
            for held in self._rotation(key, now).choose(requests)
        ]

    def _pool_of(self, request: Request) -> BundleKey | None:
        """Return the bundle that could serve a request; None for the node itself."""
        if not request.group or request.capped_since is not None:
            return None
        fitting = [
            bundle
            for bundle in self._bundles.of(request)
            if fits(request.resources, bundle.total)
        ]
        return max(fitting, key=_cpu_free).key if fitting else None

    def _rotation(self, key: BundleKey | None, now: float) -> Rotation:
        bundle = None if key is None else self._bundles.here[key]
        held = [lease for lease in self._held.values() if lease.bundle is bundle]
        room = dict(self._available if bundle is None else bundle.available)
        if GPU in room:  # what is free may be in parts
            devices = self._devices if bundle is None else bundle.devices
            room[GPU] = devices.largest()
        return Rotation(held, room, self._min_hold_s, now)

    def _waits_for_room(self, request: Request) -> bool:
        if request.spilled or request.capped_since is not None:
            return not request.spilled
        if request.group:
            bundles = self._bundles.of(request)
            return any(fits(request.resources, b.total) for b in bundles) and not any(
                b.fits(request.resources) for b in bundles
            )
        return self.could_be_here(request) and not self._fits_now(request)

    def could_be_here(self, request: Request) -> bool:
        return self._cluster.own.could_serve(request.resources, request.labels)

    def _fits_now(self, request: Request) -> bool:
        needs = request.resources
        return fits(needs, self._available) and self._devices.fits(needs.get(GPU, 0))


def _cpu_free(bundle: Bundle) -> int:
    return bundle.available.get(CPU, 0)
