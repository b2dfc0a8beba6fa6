"""Sharing a large object once: `put` it, and pass the ref.

A value given as an argument is stored again with each call; a ref costs some bytes, and
tasks on one node read the same memory.
"""

import numpy as np

import sparkray


@sparkray.remote
def column_sum(table, column):
    assert not table.flags.writeable  # a view of shared memory
    return float(table[:, column].sum())


def main():
    table = np.arange(4_000_000.0).reshape(-1, 8)
    ref = sparkray.put(table)
    sums = sparkray.get([column_sum.remote(ref, column) for column in range(8)])
    assert sums == [float(table[:, column].sum()) for column in range(8)]
    print("sums", sums[:2], "...")


if __name__ == "__main__":
    main()
