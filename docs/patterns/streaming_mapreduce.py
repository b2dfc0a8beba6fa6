"""Streaming MapReduce: generators send partial counts on while they still read.

Each mapper yields a piece for each reducer, batch after batch; reducers are actors that
take pieces as they come, so neither side ever holds everything.
"""

import zlib
from collections import Counter

import sparkray

TEXT = ["the quick brown fox", "jumps over the lazy dog", "the end"] * 20
REDUCERS = 2


@sparkray.remote(generator_backpressure_num_objects=4)
def mapper(lines, batch=10):
    for start in range(0, len(lines), batch):
        pieces = [Counter() for _ in range(REDUCERS)]
        for line in lines[start : start + batch]:
            for word in line.split():
                pieces[zlib.crc32(word.encode()) % REDUCERS][word] += 1
        yield pieces


@sparkray.remote(num_cpus=0)
class Reducer:
    def __init__(self, index):
        self.index, self.counts = index, Counter()

    def add(self, pieces):
        self.counts.update(pieces[self.index])

    def result(self):
        return dict(self.counts)


def main():
    reducers = [Reducer.remote(index) for index in range(REDUCERS)]
    streams = [mapper.remote(TEXT[i::3]) for i in range(3)]
    while streams:
        ready, _ = sparkray.wait(streams, num_returns=1)
        piece = next(ready[0], None)
        if piece is None:
            streams.remove(ready[0])
            continue
        for reducer in reducers:
            reducer.add.remote(piece)  # the ref: the driver never sees the piece
    counts = {}
    for part in sparkray.get([reducer.result.remote() for reducer in reducers]):
        counts.update(part)
    assert counts == dict(Counter(word for line in TEXT for word in line.split()))
    print("the", counts["the"])


if __name__ == "__main__":
    main()
