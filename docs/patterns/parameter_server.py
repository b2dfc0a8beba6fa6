"""Parameter server: workers compute gradients, an actor holds the weights.

Synchronous: all workers see the same weights each round; the slowest sets the pace.
Asynchronous: each worker pulls and pushes when it likes; weights may be a little old.
"""

import sparkray

TARGET = [3.0, -2.0]  # what the weights should become


@sparkray.remote
class ParameterServer:
    def __init__(self, size):
        self.weights = [0.0] * size

    def pull(self):
        return self.weights

    def push(self, *gradients):
        for gradient in gradients:
            self.weights = [
                w - 0.1 * g for w, g in zip(self.weights, gradient, strict=True)
            ]
        return self.weights


@sparkray.remote
def gradient(weights):
    return [w - t for w, t in zip(weights, TARGET, strict=True)]


@sparkray.remote
def work_alone(server, rounds):
    for _ in range(rounds):
        weights = sparkray.get(server.pull.remote())
        sparkray.get(server.push.remote(gradient.__wrapped__(weights)))


def synchronous(workers=3, rounds=20):
    server = ParameterServer.remote(len(TARGET))
    weights = server.pull.remote()
    for _ in range(rounds):  # refs are passed on: nothing is fetched to the driver
        gradients = [gradient.remote(weights) for _ in range(workers)]
        weights = server.push.remote(*gradients)
    return sparkray.get(weights)


def asynchronous(workers=3, rounds=20):
    server = ParameterServer.remote(len(TARGET))
    sparkray.get([work_alone.remote(server, rounds) for _ in range(workers)])
    return sparkray.get(server.pull.remote())


def main():
    for way in (synchronous, asynchronous):
        weights = way()
        assert all(abs(w - t) < 0.05 for w, t in zip(weights, TARGET, strict=True))
        print(way.__name__, [round(w, 3) for w in weights])


if __name__ == "__main__":
    main()
