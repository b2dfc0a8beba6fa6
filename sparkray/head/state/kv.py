"""A small key-value store: values by namespace and key, for libraries.  Pure."""

from __future__ import annotations


class KVTable:
    """Values that everybody in the cluster sees."""

    def __init__(self) -> None:
        self._spaces: dict[str, dict[bytes, bytes]] = {}
        self.changed: set[tuple[str, bytes]] = set()  #: to be written

    def put(
        self, namespace: str, key: bytes, value: bytes, *, overwrite: bool
    ) -> bytes | None:
        """Store a value; return what was there before.

        Without ``overwrite`` a value that is there stays.
        """
        space = self._spaces.setdefault(namespace, {})
        before = space.get(key)
        if before is None or overwrite:
            space[key] = value
            self.changed.add((namespace, key))
        return before

    def get(self, namespace: str, key: bytes) -> bytes | None:
        return self._spaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: bytes) -> bytes | None:
        """Forget a value; return what was there before."""
        space = self._spaces.get(namespace, {})
        before = space.pop(key, None)
        if before is not None:
            self.changed.add((namespace, key))
        if not space:
            self._spaces.pop(namespace, None)
        return before

    def keys(self, namespace: str, prefix: bytes) -> list[bytes]:
        return sorted(
            key for key in self._spaces.get(namespace, {}) if key.startswith(prefix)
        )

    def all_keys(self) -> list[tuple[str, bytes]]:
        return [(name, key) for name, space in self._spaces.items() for key in space]
