"""The least that has to work on every supported Python, from an installed wheel."""

import importlib
import pkgutil
import sys

import numpy as np

import sparkray


@sparkray.remote
def leaf(x):
    return x * x


@sparkray.remote
def branch(n):
    return sum(sparkray.get([leaf.remote(i) for i in range(n)]))


@sparkray.remote
def first(array):
    return float(array[0])


@sparkray.remote
def fails():
    raise KeyError("key")


def import_everything():
    """Import every module of the wheel but those that need an extra."""
    for module in pkgutil.walk_packages(sparkray.__path__, "sparkray."):
        needs_extra = ".spark" in module.name or module.name.endswith("util.joblib")
        if not module.name.endswith("__main__") and not needs_extra:
            importlib.import_module(module.name)


def main():
    import_everything()
    sparkray.init(address="local", num_cpus=2)
    assert sparkray.get([branch.remote(n) for n in range(10)])[-1] == 204
    assert sparkray.get(first.remote(sparkray.put(np.ones(1_000_000)))) == 1.0
    try:
        sparkray.get(fails.remote(), timeout=30)
    except KeyError:
        pass
    else:
        raise AssertionError("the task's error did not arrive")
    sparkray.shutdown()
    print("works on Python", ".".join(map(str, sys.version_info[:3])))


if __name__ == "__main__":
    main()
