"""What one walk through the waiting requests of a node has given away so far.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkray.agent.state.bundles import Bundle, BundleKey
from sparkray.agent.state.devices import Devices, Share
from sparkray.agent.state.events import Effect
from sparkray.agent.state.workers import PoolKey
from sparkray.resources import GPU, Vector, fits, take


@dataclass(slots=True)
class Walk:
    """A copy of what is free, to take from.

    Args:
        room: of the node, copied already.
        node_devices: of the node; copied when first asked for.
    """

    room: Vector
    node_devices: Devices
    #: What is left of the bundles that were looked at.
    bundles: dict[BundleKey, Vector] = field(default_factory=dict)
    devices: dict[BundleKey | None, Devices] = field(default_factory=dict)
    grants: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    placed: dict[int, int] = field(default_factory=dict)  #: request -> places taken
    starts: dict[PoolKey, int] = field(default_factory=dict)
    new_processes: int = 0
    effects: list[Effect] = field(default_factory=list)

    def fits(self, needs: Vector, bundle: Bundle | None = None) -> bool:
        """Tell if there is room on the node, or in a bundle."""
        if not fits(needs, self._room_of(bundle)):
            return False
        return GPU not in needs or self._devices_of(bundle).fits(needs[GPU])

    def take(self, needs: Vector, bundle: Bundle | None = None) -> Share:
        """Take what `fits`; return the devices in it."""
        take(self._room_of(bundle), needs)
        return self._devices_of(bundle).take(needs[GPU]) if GPU in needs else {}

    def _room_of(self, bundle: Bundle | None) -> Vector:
        if bundle is None:
            return self.room
        return self.bundles.setdefault(bundle.key, dict(bundle.available))

    def _devices_of(self, bundle: Bundle | None) -> Devices:
        key = None if bundle is None else bundle.key
        if key not in self.devices:
            free = self.node_devices if bundle is None else bundle.devices
            self.devices[key] = free.copy()
        return self.devices[key]
