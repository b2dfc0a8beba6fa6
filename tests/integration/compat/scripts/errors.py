"""What fails, and by which names it is caught."""
# mypy: ignore-errors

import os
import time

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError


@ray.remote
def divide(a, b):
    return a / b


@ray.remote
def use(value):
    return value


@ray.remote
def sleep():
    time.sleep(60)


@ray.remote(max_retries=1)
def die():
    os._exit(1)


@ray.remote(max_retries=3, retry_exceptions=[ConnectionError])
def flaky(path):
    with open(path, "a") as file:
        file.write("x")
    with open(path) as file:
        if len(file.read()) < 3:
            raise ConnectionError("again")
    return "at last"


@ray.remote(max_restarts=1, max_task_retries=1)
class Counter:
    def __init__(self, fail=False):
        if fail:
            raise ValueError("not built")
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def fail(self):
        raise KeyError("in the actor")

    def pid(self):
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


ray.init(num_cpus=4)
error = raised(RayTaskError, lambda: ray.get(divide.remote(1, 0)))
assert isinstance(error, ZeroDivisionError) and "divide" in str(error)
raised(ZeroDivisionError, lambda: ray.get(use.remote(divide.remote(1, 0))))
raised(GetTimeoutError, lambda: ray.get(sleep.remote(), timeout=0.1))
raised(TimeoutError, lambda: ray.get(sleep.remote(), timeout=0.1))
raised(ray.exceptions.WorkerCrashedError, lambda: ray.get(die.remote()))
raised(ray.exceptions.RaySystemError, lambda: ray.get(die.remote()))

ref = sleep.remote()
ray.cancel(ref, force=False, recursive=True)
raised(
    (ray.exceptions.TaskCancelledError, RayTaskError),
    lambda: ray.get(ref, timeout=20),
)
path = f"/tmp/ray-script-{os.getpid()}"
assert ray.get(flaky.remote(path)) == "at last"
os.unlink(path)

counter = Counter.remote()
assert ray.get([counter.add.remote() for _ in range(3)]) == [1, 2, 3]
raised(KeyError, lambda: ray.get(counter.fail.remote()))
pid = ray.get(counter.pid.remote())
ray.kill(counter, no_restart=False)
while ray.get(counter.pid.remote()) == pid:
    time.sleep(0.05)
assert ray.get(counter.add.remote()) == 1
ray.kill(counter)
died = raised(RayActorError, lambda: ray.get(counter.add.remote()))
assert isinstance(died, ray.exceptions.ActorDiedError)
built = Counter.remote(fail=True)
raised(RayActorError, lambda: ray.get(built.add.remote()))
left = Counter.remote()
left.leave.remote()
raised((RayActorError, OSError), lambda: ray.get(left.add.remote(), timeout=20))
raised(ValueError, lambda: ray.get_actor("nobody"))
raised(ray.exceptions.RayError, lambda: ray.get(built.add.remote()))
print("done")
