"""Tree of actors: a supervisor owns workers, and the driver talks to supervisors only.

When a supervisor ends, the handles it holds go with it, and so its workers end too.
"""

import sparkray


@sparkray.remote(num_cpus=0)
class Worker:
    def __init__(self, name):
        self.name = name

    def evaluate(self, x):
        return self.name, x * x


@sparkray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, name, workers):
        self.workers = [Worker.remote(f"{name}.{i}") for i in range(workers)]

    def best(self, xs):
        calls = [
            self.workers[i % len(self.workers)].evaluate.remote(x)
            for i, x in enumerate(xs)
        ]
        return max(sparkray.get(calls), key=lambda answer: answer[1])


def main():
    supervisors = [Supervisor.remote(name, 2) for name in "ab"]
    best = sparkray.get(
        [supervisors[0].best.remote([1, 2, 3]), supervisors[1].best.remote([9, 4])]
    )
    assert best == [("a.0", 9), ("b.0", 81)], best
    print(best)


if __name__ == "__main__":
    main()
