"""Runtime environments and the runtime context."""
# mypy: ignore-errors

import os
import tempfile

import ray
from ray.runtime_env import RuntimeEnv, RuntimeEnvConfig

folder = tempfile.mkdtemp()
with open(os.path.join(folder, "shipped_module.py"), "w") as file:
    file.write("ANSWER = 42\n")
with open(os.path.join(folder, "data.txt"), "w") as file:
    file.write("data")


@ray.remote
def variable(name):
    return os.environ.get(name)


@ray.remote
def shipped():
    import shipped_module

    with open("data.txt") as file:
        return shipped_module.ANSWER, file.read()


@ray.remote(runtime_env={"env_vars": {"LEVEL": "actor"}})
class Reader:
    def variable(self, name):
        return os.environ.get(name)

    def context(self):
        context = ray.get_runtime_context()
        return context.get_actor_id(), context.get_assigned_resources()


context = ray.init(
    num_cpus=4,
    namespace="scripts",
    runtime_env={"env_vars": {"LEVEL": "job", "ONLY": "job"}},
    logging_level="warning",
    log_to_driver=True,
)
assert ray.is_initialized()
assert ray.get(variable.remote("LEVEL")) == "job"
task = variable.options(runtime_env={"env_vars": {"LEVEL": "task"}})
assert ray.get([task.remote("LEVEL"), task.remote("ONLY")]) == ["task", "job"]
reader = Reader.options(name="reader").remote()
assert ray.get(reader.variable.remote("LEVEL")) == "actor"
environment = RuntimeEnv(
    working_dir=folder,
    env_vars={"LEVEL": "directory"},
    config=RuntimeEnvConfig(setup_timeout_seconds=60),
)
found = shipped.options(runtime_env=environment).remote()
assert ray.get(found) == (42, "data")

here = ray.get_runtime_context()
assert here.namespace == "scripts" and here.get_actor_id() is None
assert here.runtime_env["env_vars"]["ONLY"] == "job"
assert here.get_node_id() == ray.nodes()[0]["NodeID"]
actor_id, resources = ray.get(reader.context.remote())
assert len(actor_id) > 8 and isinstance(resources, dict)
same = ray.get_actor("reader", namespace="scripts")
assert ray.get(same.variable.remote("LEVEL")) == "actor"
assert ray.util.list_named_actors() == ["reader"]
try:
    wrong = variable.options(runtime_env={"working_dir": "/no/such/directory"})
    ray.get(wrong.remote("LEVEL"))
    raise AssertionError("a directory that is not there")
except (ValueError, ray.exceptions.RuntimeEnvSetupError):
    pass
print("done")
