"""Remote functions as this process's scheduler knows them: templates and their keys."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sparkray.protocol.messages import Argument, DefineTask, LeaseSpec, Strategy
from sparkray.runtime.arguments import PutsArguments, argument
from sparkray.runtime.functions import TaskTemplate, pickle_function
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.scheduling import KeyQueue, TemplateState
from sparkray.store.serialize import serialize

#: A larger function goes through the store: once to a node, not to each worker.
SENT_MAX_BYTES: Final = 1 << 20


class Function(NamedTuple):
    """A function as it goes to workers; the refs keep what it needs in existence."""

    hash: bytes
    data: bytes | None
    stored: Argument | None
    refs: list[ObjectRef]


class Templates:
    """All templates used here, and the scheduling keys that their tasks queue in."""

    def __init__(self, shared: Shared, store: PutsArguments) -> None:
        self._shared = shared
        self._store = store
        self._count = 0
        #: By resources, environment, strategy and depth; guarded by the runtime's lock.
        self.keys: dict[Any, KeyQueue] = {}

    def state_of(
        self, template: TaskTemplate, depth: int, captured: Strategy | None
    ) -> TemplateState:
        """Return our state of a template.

        Its depth may differ from call to call, and so may the placement group that
        captures what the running task submits.
        """
        if template.runtime is not self:
            template.runtime, template.states = self, {}
        state = template.states.get((depth, captured))
        if state is None:
            state = self._make_state(template, depth, captured)
            template.states[depth, captured] = state
        template.state = state
        return state

    def _make_state(
        self, template: TaskTemplate, depth: int, captured: Strategy | None
    ) -> TemplateState:
        strategy = template.strategy
        if captured is not None and template.inherits:
            strategy = captured
        known: TemplateState | None = next(iter(template.states.values()), None)
        function = self._dump(template) if known is None else known.function
        runtime_env = template.runtime_env or self._shared.runtime_env
        with self._shared.lock:
            number = self.new_number()
            key = self._key(template, runtime_env, depth, strategy)
            state = TemplateState(number, template.name, key, depth)
        state.function = function
        state.captured = captured
        state.num_returns = template.num_returns
        state.max_retries = template.max_retries
        state.retry_exceptions = template.retry_exceptions
        state.batch = template.max_retries != 0 and not template.max_calls
        state.define = DefineTask(
            template=state.template_id,
            function_hash=function.hash,
            function=function.data,
            stored_function=function.stored,
            name=template.name,
            num_returns=template.num_returns,
            resources=template.resources,
            runtime_env=runtime_env,
            max_calls=template.max_calls,
            batch=state.batch,
            backpressure=template.backpressure,
            depth=depth,
            strategy=strategy,
            timeout_s=template.timeout_s,
        )
        return state

    def new_number(self) -> int:
        """Return the number of a new template; the lock is held."""
        self._count += 1
        return self._count

    def _key(
        self,
        template: TaskTemplate,
        runtime_env: str,
        depth: int,
        strategy: Strategy,
    ) -> KeyQueue:
        shape = (
            tuple(sorted(template.resources.items())),
            runtime_env,
            strategy,
            depth,
            template.max_retries != 0,
        )
        key = self.keys.get(shape)
        if key is None:
            settings = self._shared.settings
            spec = LeaseSpec(
                job_id=self._shared.attached.job_id,
                runtime_env=runtime_env,
                resources=template.resources,
                strategy=strategy,
                depth=depth,
                retriable=template.max_retries != 0,
            )
            key = KeyQueue(spec, settings.work_ahead_s, settings.pipeline_max_tasks)
            self.keys[shape] = key
        return key

    def _dump(self, template: TaskTemplate) -> Function:
        function_hash, data, refs = pickle_function(template.function, template.name)
        if len(data) <= SENT_MAX_BYTES:
            return Function(function_hash, data, None, refs)
        entry = self._store.put_serialized(serialize(data), (), local=1, pins=0)
        stored = argument(0, entry, self._shared.address)
        return Function(function_hash, None, stored, [*refs, ObjectRef(entry.id)])
