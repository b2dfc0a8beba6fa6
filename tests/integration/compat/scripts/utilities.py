"""What `ray.util` holds besides: joblib, progress, state, what cannot be sent."""
# mypy: ignore-errors

import io
import threading

import joblib
import ray
from ray.experimental import tqdm_ray
from ray.util import inspect_serializability
from ray.util.joblib import register_ray
from ray.util.state import list_nodes

lock = threading.Lock()


def locked():
    return lock


@ray.remote
def work(count):
    return sum(1 for _ in tqdm_ray.tqdm(range(count), desc="steps", position=0))


ray.init(num_cpus=4)
out = io.StringIO()
sent, failures = inspect_serializability(locked, name="locked", print_file=out)
assert not sent and "lock" in out.getvalue()
assert any(failure.obj is lock for failure in failures)
assert inspect_serializability(work, print_file=out)[0]

register_ray()
with joblib.parallel_backend("ray", n_jobs=2):
    roots = joblib.Parallel()(joblib.delayed(pow)(n, 2) for n in range(10))
assert roots == [n * n for n in range(10)]
assert ray.get(work.remote(10)) == 10
assert len(list_nodes()) == 1
assert ray.util.get_node_ip_address() == ray.nodes()[0]["NodeManagerAddress"]
print("done")
