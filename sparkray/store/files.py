"""The files of one store: segments in memory, spilled objects on disk.

Used on the agent's loop; what takes long happens in a few threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from sparkray.store import segment, spill

_T = TypeVar("_T")

#: Making or removing a file of up to this size does not hold the loop up.
_QUICK_BYTES: Final = 2 * 1024 * 1024


class StoreFiles:
    """Makes, copies and removes files.

    Args:
        directory: for segments; made now.
        spill_directory: for spilled objects; made when the first one is.
    """

    def __init__(self, directory: str, spill_directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory = directory
        self._spill_directory = spill_directory
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="sparkray-store")
        self._removing: set[asyncio.Future[None]] = set()

    def path(self, number: int) -> str:
        return f"{self._directory}/{number}"

    async def make(self, number: int, capacity_bytes: int) -> None:
        """Make a segment, once the memory of those that are going is back.

        Raises:
            OSError: no room; names the directory.
        """
        while self._removing:
            await asyncio.wait(self._removing)
        path = self.path(number)
        if capacity_bytes <= _QUICK_BYTES:
            segment.create_segment(path, capacity_bytes)
        else:
            await self._in_thread(segment.create_segment, path, capacity_bytes)

    def remove(self, number: int, capacity_bytes: int, *, unmapped: bool) -> None:
        path = self.path(number)
        if capacity_bytes <= _QUICK_BYTES:
            segment.remove_segment(path, unmapped=unmapped)
            return
        removal = asyncio.ensure_future(
            self._in_thread(lambda: segment.remove_segment(path, unmapped=unmapped))
        )
        self._removing.add(removal)
        removal.add_done_callback(self._removing.discard)

    async def spill(self, number: int, size_bytes: int, file: int) -> None:
        """Copy a segment to disk.

        Raises:
            OSError: no room, or a broken disk; names the directory.
        """
        await self._in_thread(self._spill, number, size_bytes, file)

    def _spill(self, number: int, size_bytes: int, file: int) -> None:
        os.makedirs(self._spill_directory, mode=0o700, exist_ok=True)
        data = segment.map_for_reading(self.path(number), size_bytes)
        spill.write_spill(self.spilled_path(file), data)

    async def restore(self, file: int, number: int, size_bytes: int) -> None:
        """Copy a spilled object into a segment.

        Raises:
            spill.SpillDamagedError: the file is not what was written.
            OSError: it cannot be read.
        """
        await self._in_thread(self._restore, file, number, size_bytes)

    def _restore(self, file: int, number: int, size_bytes: int) -> None:
        into = segment.map_for_writing(self.path(number), size_bytes)
        spill.read_spill(self.spilled_path(file), into)

    async def verify(self, file: int, size_bytes: int) -> None:
        """Check a spilled object that is to be read where it is.

        Raises:
            spill.SpillDamagedError: the file is not what was written.
            OSError: it cannot be read.
        """
        await self._in_thread(spill.verify_spill, self.spilled_path(file), size_bytes)

    def delete_spilled(self, file: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.spilled_path(file))

    async def close(self) -> None:
        """Wait for the threads, then remove both directories."""
        await asyncio.to_thread(self._pool.shutdown)
        for directory in (self._directory, self._spill_directory):
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *args)

    def spilled_path(self, file: int) -> str:
        """Return where a spilled object is; it lies there as in a segment."""
        return f"{self._spill_directory}/{file}"
