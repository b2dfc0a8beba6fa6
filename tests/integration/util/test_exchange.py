"""Objects that one process makes in the name of another, and refs nobody counts."""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkray
from sparkray.exceptions import ObjectLostError, SparkrayError, WorkerCrashedError
from sparkray.util import state
from sparkray.util.exchange import Inbox, InboxAddress, Loan, Receipt, nodes_of
from tests.support import quiet, until


@sparkray.remote(max_retries=0)
def make(address: InboxAddress, number: int, end: str = "") -> Receipt:
    table = pa.table({"n": np.full(100_000, number)})
    receipt = address.put(table, number)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


def stored() -> dict[str, float]:
    """Return the bytes in use of each node's store."""
    return {
        node.node_id: node.resources["object_store_memory"]
        - node.available["object_store_memory"]
        for node in state.list_nodes()
    }


def nothing_is_stored() -> bool:
    return not any(stored().values())


def test_what_others_made_outlives_them_and_goes_with_the_ref(two_nodes: Any) -> None:
    second = make.options(resources={"second": 1}, max_calls=1)
    with Inbox() as inbox:
        receipts = sparkray.get([second.remote(inbox.address, n) for n in range(3)])
        refs = [inbox.take(receipt) for receipt in receipts]
    assert {node for ref in refs for node in nodes_of(ref)} == {
        two_nodes.second.node_id
    }
    pinned = refs[1]
    assert [table["n"][0].as_py() for table in sparkray.get(refs)] == [0, 1, 2]
    del refs
    rows = {row.object_id: row for row in state.list_objects()}
    assert rows[pinned.hex()].owner_pid == os.getpid()
    assert sparkray.get(sparkray.remote(len).remote(pinned)) == 100_000
    del pinned
    until(nothing_is_stored)


def test_what_was_not_taken_is_freed_on_all_nodes_and_later_things_are_refused(
    two_nodes: Any,
) -> None:
    second = make.options(resources={"second": 1})
    with Inbox() as inbox:
        address = inbox.address
        taken = inbox.take(sparkray.get(second.remote(address, 0)))
        sparkray.get([second.remote(address, 1), make.remote(address, 2)])
        with pytest.raises(WorkerCrashedError):
            sparkray.get(second.remote(address, 3, end="killed"))
    row_bytes = next(r.size_bytes for r in state.list_objects() if r.state == "stored")
    until(lambda: sum(stored().values()) < 2 * row_bytes)
    with pytest.raises(ObjectLostError):
        sparkray.get(second.remote(address, 4))
    assert sparkray.get(taken).num_rows == 100_000
    del taken
    until(nothing_is_stored)
    assert quiet(nothing_is_stored)


def test_wrong_uses_say_so(local: Any) -> None:
    with Inbox() as inbox, Inbox() as other:
        receipt = sparkray.get(make.remote(inbox.address, 0))
        with pytest.raises(ValueError, match="not from this inbox"):
            other.take(receipt)
        ref = inbox.take(receipt)
        with pytest.raises(ValueError, match="taken before"):
            inbox.take(receipt)
        with pytest.raises(TypeError, match="cannot hold refs"):
            inbox.address.put([ref], 1)
        elsewhere = InboxAddress(b"another!", inbox.address.prefix)
        with pytest.raises(SparkrayError, match="belongs to cluster"):
            elsewhere.put(1, 2)
    with pytest.raises(ValueError, match="the inbox is closed"):
        inbox.take(receipt)
    inbox.close()


def test_a_loan_gives_the_ref_for_as_long_as_somebody_holds_it(local: Any) -> None:
    ref = sparkray.put(np.ones(1_000_000))
    loan = pickle.loads(pickle.dumps(Loan(ref)))
    assert sparkray.get(loan.ref()).sum() == 1_000_000

    @sparkray.remote
    def total(loan: Loan) -> float:
        return float(sparkray.get(loan.ref()).sum())

    assert sparkray.get(total.remote(loan)) == 1_000_000
    del ref
    until(nothing_is_stored)
    with pytest.raises(ObjectLostError):
        sparkray.get(total.remote(loan))
