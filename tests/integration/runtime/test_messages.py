"""What a driver that fails shows to its user."""

from __future__ import annotations

from tests.support import run_driver

IMPOSSIBLE = """
import sparkray
sparkray.init(num_cpus=1)

@sparkray.remote
def f():
    pass

@sparkray.remote
class Actor:
    def ping(self):
        pass

tasks = [f.options(num_cpus=64).remote() for _ in range(3)]
actor = Actor.options(resources={"moon": 1}).remote()
for ref in [*tasks, actor.ping.remote()]:
    try:
        sparkray.get(ref)
    except sparkray.exceptions.SparkrayError as error:
        print(type(error).__name__)
"""


def test_a_request_that_no_node_can_satisfy_is_told_of_while_it_waits() -> None:
    run = run_driver(IMPOSSIBLE, SPARKRAY_INFEASIBLE_TIMEOUT_S="6.5")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 4
    told = [line for line in run.stderr.splitlines() if "a request for" in line]
    assert len(told) == 2 and all(line.startswith("sparkray: ") for line in told)
    for wanted in ("{CPU: 64}", "moon: 1}"):
        (line,) = [line for line in told if wanted in line]
        assert "the largest has {CPU: 1" in line and "it fails in" in line
