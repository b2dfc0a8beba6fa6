"""Objects that a Spark plan reads, kept for as long as it can be computed.

Spark holds a plan in its JVM: by frames, by caches, by RDDs made of it.  All of them
share the one Python function that reads our objects, so the objects are needed exactly
as long as that function is reachable there.  A weak reference inside the JVM tells; a
thread looks at it.  Spark Connect has the plan at its server, where nobody can look:
there objects are kept until the session ends, or until they are let go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sparkray
from sparkray.exceptions import SparkrayError

if TYPE_CHECKING:
    from sparkray import ObjectRef

_log = logging.getLogger("sparkray")
#: How often the thread looks.
LOOK_S: Final = 5.0
#: The name under which a frame knows what is held for it.
_ATTRIBUTE: Final = "_sparkray_hold"


@dataclass(eq=False)
class Hold:
    """The refs of one plan."""

    refs: Sequence[ObjectRef]
    job_id: str  #: of the session that the refs belong to
    plan: Any  #: a weak reference in the JVM; None: nobody can tell

    def is_over(self, job_id: str) -> bool:
        """Tell whether nothing can read the objects any more.

        Args:
            job_id: of the present session, "" if there is none.
        """
        if job_id != self.job_id:
            return True
        try:
            return self.plan is not None and self.plan.get() is None
        except Exception as error:  # the JVM is gone, as py4j says in many ways
            _log.debug("cannot ask about a plan: %s", error)
            return True


class Holds:
    """All holds of this process, and the thread that ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._holds: set[Hold] = set()
        self._thread: threading.Thread | None = None

    def add(self, frame: Any, refs: Sequence[ObjectRef]) -> None:
        """Keep the objects that this frame reads."""
        hold = Hold(list(refs), _job_id(), _weak_plan(frame))
        setattr(frame, _ATTRIBUTE, hold)
        with self._lock:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="sparkray-holds", daemon=True
                )
                self._thread.start()

    def release(self, frame: Any) -> bool:
        """Let go of what is held for a frame; False if nothing is."""
        hold = getattr(frame, _ATTRIBUTE, None)
        with self._lock:
            known = hold in self._holds
            self._holds.discard(hold)
        if hold is not None:
            hold.refs = ()
        return known

    def sweep(self) -> int:
        """Let go of what nothing can read any more; return how many holds are left."""
        with self._lock:
            holds = list(self._holds)
        job_id = _job_id()
        over = {hold for hold in holds if hold.is_over(job_id)}
        for hold in over:
            hold.refs = ()
        with self._lock:
            self._holds -= over
            return len(self._holds)

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            self.sweep()
            with self._lock:
                if not self._holds:
                    self._thread = None
                    return


def _job_id() -> str:
    if not sparkray.is_initialized():
        return ""
    try:
        return sparkray.get_runtime_context().get_job_id()
    except SparkrayError:  # another thread ended it just now
        return ""


def _weak_plan(frame: Any) -> Any:
    """Return a weak reference to the Python function of a `mapInArrow` frame."""
    if ".connect." in type(frame).__module__:
        return None
    try:
        function = frame._jdf.queryExecution().analyzed().expressions().apply(0).func()
        return frame.sparkSession._jvm.java.lang.ref.WeakReference(function)
    except Exception as error:  # a guarded gateway, or a plan of another shape
        _log.debug("cannot watch a plan: %s", error)
        return None


#: Those of this process: a plan outlives every object that could carry them.
holds = Holds()
