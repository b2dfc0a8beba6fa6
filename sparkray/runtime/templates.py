"""Remote functions as this process's scheduler knows them: templates and their keys."""

from __future__ import annotations

from typing import Any

from sparkray.protocol.messages import DefineTask, LeaseSpec, Strategy
from sparkray.runtime.functions import TaskTemplate, pickle_function
from sparkray.runtime.ownership import Ownership
from sparkray.runtime.refs import ObjectRef
from sparkray.runtime.shared import Shared
from sparkray.runtime.state.objects import Entry
from sparkray.runtime.state.scheduling import KeyQueue, TemplateState


class Templates:
    """All templates used here, and the scheduling keys that their tasks queue in."""

    def __init__(self, shared: Shared, ownership: Ownership) -> None:
        self._shared = shared
        self._ownership = ownership
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
        if known is not None:
            function_hash, data = known.define.function_hash, known.define.function
            refs: list[ObjectRef] = []
        else:
            function_hash, data, refs = pickle_function(
                template.function, template.name
            )
        runtime_env = template.runtime_env or self._shared.runtime_env
        with self._shared.lock:
            number = self.new_number()
            key = self._key(template, runtime_env, depth, strategy)
            state = TemplateState(number, template.name, key, depth)
            state.pinned = (
                known.pinned if known else [self._pinned(ref) for ref in refs]
            )
        state.captured = captured
        state.num_returns = template.num_returns
        state.max_retries = template.max_retries
        state.retry_exceptions = template.retry_exceptions
        state.batch = template.max_retries != 0 and not template.max_calls
        state.define = DefineTask(
            template=state.template_id,
            function_hash=function_hash,
            function=data,
            name=template.name,
            num_returns=template.num_returns,
            resources=template.resources,
            runtime_env=runtime_env,
            max_calls=template.max_calls,
            batch=state.batch,
            backpressure=template.backpressure,
            depth=depth,
            strategy=strategy,
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
            )
            key = KeyQueue(spec, settings.work_ahead_s, settings.pipeline_max_tasks)
            self.keys[shape] = key
        return key

    def _pinned(self, ref: ObjectRef) -> Entry:
        entry = self._ownership.entry_of(ref)
        entry.pins += 1
        return entry
