"""The owner-borrower protocol of many processes over slow channels, against a model.

Every process runs the real protocol and its tables; only the network is played: one
queue for each direction between two processes, emptied one message at a time, in any
order among the queues.  A process that dies is heard of after what it had sent.

Never freed early: an object whose owner lives is there while any living process holds
a ref to it.  Always freed in the end: when all refs are dropped and all messages have
arrived, no table has anything left.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sparkray.config import Settings
from sparkray.protocol.messages import AddBorrower, Address, RemoveBorrower
from sparkray.runtime.context import RunningTask, running
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import INLINE, Entry

pytestmark = pytest.mark.timeout(300)  # a failure is made small before it is shown
PROCESSES = 4


@dataclass
class Given:
    """Refs on their way in the value of a result."""

    told: list[tuple[bytes, Address]]


@dataclass
class Called:
    """A task with refs among its arguments; its caller keeps those until the answer."""

    number: int
    refs: list[tuple[bytes, Address]]


@dataclass
class Answered:
    number: int
    kept: list[bytes]


@dataclass
class Ended:
    """The channel's end: its other side has died."""


class Process:
    def __init__(self, number: int, network: Network) -> None:
        self.number, self.alive = number, True
        self.address = Address(bytes([number]) * 16, b"n" * 28, "", "", 0)
        loop: Any = SimpleNamespace(
            post=lambda call: None, call_later=lambda delay, call: None
        )
        self.shared = Shared(loop, Settings())
        self.shared.address, self.shared.prefix = self.address, bytes([number]) * 16
        ends: Any = SimpleNamespace(
            send=lambda to, message: network.send(self, to, message),
            connect=lambda to: network.connect(self, to),
            is_connected=lambda worker_id: network.by_id[worker_id].alive,
        )
        self.shared.peers = ends
        agent: Any = SimpleNamespace(send=lambda message: None)
        self.shared.agent = agent
        self.shared.on_actor_unneeded = lambda client: None
        self.ownership = Ownership(self.shared)
        self.ownership.settle = lambda: None
        self.table = self.shared.table
        self.refs: list[bytes] = []  #: ids, one for each `ObjectRef` here
        self.values: list[list[Entry]] = []  #: not unpickled yet
        self.calls: dict[int, tuple[Process, Entry]] = {}  #: to whom, what is kept
        self.tasks: list[tuple[Process, int]] = []  #: that run here

    def drop(self, object_id: bytes) -> None:
        self.refs.remove(object_id)
        self.shared.note_dropped(object_id)
        self.shared.drain()


@dataclass
class Network:
    queues: dict[tuple[int, int], deque[Any]] = field(default_factory=dict)
    by_id: dict[bytes, Process] = field(default_factory=dict)

    def connect(self, sender: Process, to: Address) -> Any:
        if not self.by_id[to.worker_id].alive:
            raise OSError("it is gone")

    def send(self, sender: Process, to: Address, message: Any) -> None:
        receiver = self.by_id[to.worker_id]
        if receiver.alive:
            self.queue(sender, receiver).append(message)

    def queue(self, sender: Process, receiver: Process) -> deque[Any]:
        return self.queues.setdefault((sender.number, receiver.number), deque())


class Histories(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.network = Network()
        self.processes = [Process(n + 1, self.network) for n in range(PROCESSES)]
        self.network.by_id = {p.address.worker_id: p for p in self.processes}
        self.number = 0
        #: Refs that came with a task whose caller has died before the answer: the task
        #: is to be stopped, and nobody can count what it has taken.
        self.uncounted: set[bytes] = set()

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def holders(self) -> list[Process]:
        return [process for process in self.living() if process.refs]

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def pick(self, data: st.DataObject) -> tuple[Process, Process, bytes]:
        """Choose who sends which ref to whom."""
        sender = data.draw(st.sampled_from(self.holders()))
        others = [process for process in self.living() if process is not sender]
        object_id = data.draw(st.sampled_from(sorted(set(sender.refs))))
        return sender, data.draw(st.sampled_from(others)), object_id

    # --- what processes do ---

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.living()))
        object_id = process.shared.prefix + self.next_number().to_bytes(12, "big")
        with process.shared.lock:
            process.shared.own_entry(object_id, INLINE, b"value").local = 1
        process.refs.append(object_id)

    @precondition(lambda self: self.holders() and len(self.living()) > 1)
    @rule(data=st.data())
    def a_ref_goes_in_a_value(self, data: st.DataObject) -> None:
        sender, receiver, object_id = self.pick(data)
        with sender.shared.lock:
            entry = sender.table.entries[object_id]
            told = sender.ownership.give_contained([entry], receiver.address)
        self.network.queue(sender, receiver).append(Given(told))

    @precondition(lambda self: self.holders() and len(self.living()) > 1)
    @rule(data=st.data())
    def a_ref_goes_with_a_task(self, data: st.DataObject) -> None:
        sender, receiver, object_id = self.pick(data)
        entry = sender.table.entries[object_id]
        entry.pins += 1
        number = self.next_number()
        sender.calls[number] = receiver, entry
        refs = [(object_id, entry.owner or sender.address)]
        self.network.queue(sender, receiver).append(Called(number, refs))

    @precondition(lambda self: any(p.values for p in self.living()))
    @rule(data=st.data())
    def a_value_is_read_and_dropped(self, data: st.DataObject) -> None:
        having = [process for process in self.living() if process.values]
        process = data.draw(st.sampled_from(having))
        held = process.values.pop()
        with process.shared.lock:
            for entry in held:
                process.ownership.adopt(entry.id, entry.owner or process.address)
                process.refs.append(entry.id)
            process.table.unpin(held)
            process.shared.settle_releases()

    @precondition(lambda self: any(p.tasks for p in self.living()))
    @rule(data=st.data())
    def a_task_ends(self, data: st.DataObject) -> None:
        having = [process for process in self.living() if process.tasks]
        process = data.draw(st.sampled_from(having))
        caller, number = data.draw(st.sampled_from(process.tasks))
        process.tasks.remove((caller, number))
        task_id = self.task_id(caller, number)
        with process.shared.lock:
            if caller.alive:
                kept = [entry.id for entry in process.table.take_uncovered(task_id)]
                answer = Answered(number, kept)
                self.network.queue(process, caller).append(answer)
            else:
                process.ownership.register_uncovered(task_id)

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def a_ref_is_dropped(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.holders()))
        process.drop(data.draw(st.sampled_from(sorted(set(process.refs)))))

    @precondition(lambda self: len(self.living()) > 2)
    @rule(data=st.data())
    def a_process_dies(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.living()))
        process.alive = False
        self.uncounted |= {entry.id for _, entry in process.calls.values()}
        for other in self.living():
            self.network.queue(process, other).append(Ended())

    # --- the network ---

    @precondition(lambda self: any(self.network.queues.values()))
    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        waiting = sorted(key for key, queue in self.network.queues.items() if queue)
        self.deliver(*data.draw(st.sampled_from(waiting)))

    def deliver(self, sending: int, receiving: int) -> None:
        sender, receiver = self.processes[sending - 1], self.processes[receiving - 1]
        message = self.network.queues[sending, receiving].popleft()
        if receiver.alive:
            with receiver.shared.lock:
                self.take(sender, receiver, message)
                receiver.shared.settle_releases()

    def take(self, sender: Process, receiver: Process, message: Any) -> None:
        ownership, table = receiver.ownership, receiver.table
        if isinstance(message, AddBorrower):
            ownership.add_borrower(message.object_id, message.borrower)
        elif isinstance(message, RemoveBorrower):
            worker_id = sender.address.worker_id
            table.remove_borrower(message.object_id, worker_id, message.count)
        elif isinstance(message, Given):
            held = ownership.take_contained(message.told)
            receiver.values.append(held)
        elif isinstance(message, Called):
            self.begin_task(sender, receiver, message)
        elif isinstance(message, Answered):
            for object_id in message.kept:
                entry = table.entries[object_id]
                if entry.owner is None:
                    ownership.add_borrower(object_id, sender.address)
                else:
                    told = AddBorrower(object_id, sender.address)
                    receiver.shared.peers.send(entry.owner, told)
            table.unpin([receiver.calls.pop(message.number)[1]])
        else:
            assert isinstance(message, Ended)
            ownership.process_lost(sender.address.worker_id, "it was killed")
            for number, (target, entry) in list(receiver.calls.items()):
                if target is sender:
                    del receiver.calls[number]
                    table.unpin([entry])

    def task_id(self, caller: Process, number: int) -> bytes:
        return caller.address.worker_id + number.to_bytes(8, "big")

    def begin_task(self, sender: Process, receiver: Process, message: Called) -> None:
        task_id = self.task_id(sender, message.number)
        running.set_here(RunningTask(task_id, "task", 0, {}))
        try:
            for object_id, owner in message.refs:
                receiver.ownership.adopt(object_id, owner)
                if object_id in receiver.table.entries:
                    receiver.refs.append(object_id)
        finally:
            running.set_here(None)
        receiver.tasks.append((sender, message.number))

    # --- what has to hold ---

    @invariant()
    def nothing_that_is_held_was_freed(self) -> None:
        for process in getattr(self, "processes", []):
            for object_id in process.refs if process.alive else ():
                owner = self.network.by_id[object_id[:16]]
                if owner.alive and object_id not in self.uncounted:
                    assert object_id in owner.table.entries

    def teardown(self) -> None:
        if not hasattr(self, "processes"):
            return
        for process in self.living():
            self.finish(process)
        while any(self.network.queues.values()):
            for (sending, receiving), queue in list(self.network.queues.items()):
                while queue:
                    self.deliver(sending, receiving)
            for process in self.living():
                self.finish(process)
        for process in self.living():
            assert not process.table.entries, process.number

    def finish(self, process: Process) -> None:
        while process.values:
            held = process.values.pop()
            with process.shared.lock:
                process.table.unpin(held)
                process.shared.settle_releases()
        while process.refs:
            process.drop(process.refs[0])
        while process.tasks:
            caller, number = process.tasks.pop()
            if not caller.alive:
                continue
            answer = Answered(number, [])
            self.network.queue(process, caller).append(answer)


Histories.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestHistories = Histories.TestCase
