"""Back-pressure with `wait`: keep so many tasks under way, not all at once.

Results that pile up take memory; here at most `LIMIT` exist at a time.
"""

import sparkray

LIMIT = 8


@sparkray.remote
def produce(n):
    return bytes(n)


def main():
    pending, total, most = [], 0, 0
    for n in range(100):
        if len(pending) >= LIMIT:
            ready, pending = sparkray.wait(pending, num_returns=1)
            total += sum(map(len, sparkray.get(ready)))
        pending.append(produce.remote(n))
        most = max(most, len(pending))
    total += sum(map(len, sparkray.get(pending)))
    assert most <= LIMIT and total == sum(range(100))
    print("bytes", total, "at most under way", most)


if __name__ == "__main__":
    main()
