"""A parameter server, first in step, then with workers that go on by themselves."""
# mypy: ignore-errors

import numpy as np
import ray


@ray.remote
class ParameterServer:
    def __init__(self, size, rate):
        self.weights = np.zeros(size)
        self.rate = rate

    def apply(self, *gradients):
        self.weights = self.weights - self.rate * np.mean(gradients, axis=0)
        return self.weights

    def get_weights(self):
        return self.weights


@ray.remote
class DataWorker:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def gradient(self, weights):
        x = self.random.normal(size=(64, len(weights)))
        error = x @ (weights - TARGET)
        return x.T @ error / len(x)


TARGET = np.arange(1.0, 5.0)

ray.init(num_cpus=4, ignore_reinit_error=True, include_dashboard=False)
server = ParameterServer.remote(len(TARGET), 0.3)
workers = [DataWorker.remote(seed) for seed in range(3)]

weights = server.get_weights.remote()
for _ in range(30):
    weights = server.apply.remote(*[w.gradient.remote(weights) for w in workers])
assert np.allclose(ray.get(weights), TARGET, atol=0.2)

server = ParameterServer.remote(len(TARGET), 0.2)
weights = server.get_weights.remote()
running = {worker.gradient.remote(weights): worker for worker in workers}
for _ in range(120):
    ready, _ = ray.wait(list(running))
    worker = running.pop(ready[0])
    weights = server.apply.remote(ready[0])
    running[worker.gradient.remote(weights)] = worker
assert np.allclose(ray.get(server.get_weights.remote()), TARGET, atol=0.2)
ray.shutdown()
print("done")
