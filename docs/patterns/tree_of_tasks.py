"""Tree of tasks: a task splits its work, starts tasks for the parts and waits for them.

A task that waits lends its CPU on, so a tree deeper than the cluster is wide passes.
"""

import random

import sparkray

IN_PLACE = 2_000


@sparkray.remote
def merge_sort(values):
    if len(values) <= IN_PLACE:
        return sorted(values)
    middle = len(values) // 2
    left, right = sparkray.get(
        [merge_sort.remote(values[:middle]), merge_sort.remote(values[middle:])]
    )
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


def main():
    values = random.Random(1).choices(range(1_000_000), k=16_000)
    assert sparkray.get(merge_sort.remote(values)) == sorted(values)
    print("sorted", len(values))


if __name__ == "__main__":
    main()
