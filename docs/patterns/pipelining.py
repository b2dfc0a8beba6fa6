"""Pipelining: ask for the next piece of work before working on this one.

Without it a worker idles while it waits for the answer to "what is next?".
"""

import time

import sparkray


@sparkray.remote(num_cpus=0)
class WorkList:
    def __init__(self, items):
        self.items = list(items)

    def next(self):
        time.sleep(0.02)  # finding work takes a while
        return self.items.pop() if self.items else None


@sparkray.remote
def work(work_list):
    done = 0
    upcoming = work_list.next.remote()
    while (item := sparkray.get(upcoming)) is not None:
        upcoming = work_list.next.remote()  # under way while the next line runs
        time.sleep(0.02)
        done += item
    return done


def main():
    work_list = WorkList.remote(range(20))
    total = sum(sparkray.get([work.remote(work_list) for _ in range(2)]))
    assert total == sum(range(20))
    print("done", total)


if __name__ == "__main__":
    main()
