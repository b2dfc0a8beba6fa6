import asyncio

from sparkray.head.outbox import MAX_LOGS, Outbox


async def _drain(outbox: Outbox) -> list[bytes]:
    outbox.close()
    return [item async for item in outbox]


def test_items_come_in_order_and_of_views_only_the_newest() -> None:
    async def main() -> None:
        outbox = Outbox()
        outbox.put_view(b"old view")
        outbox.put(b"1")
        outbox.put_view(b"view")
        outbox.put(b"2")
        assert await _drain(outbox) == [b"1", b"2", b"view"]

    asyncio.run(main())


def test_logs_for_a_slow_agent_are_dropped_but_events_are_not() -> None:
    async def main() -> None:
        outbox = Outbox()
        for _ in range(MAX_LOGS + 5):
            outbox.put_logs(b"log")
        outbox.put(b"event")
        assert outbox.dropped_logs == 5
        assert await _drain(outbox) == [b"log"] * MAX_LOGS + [b"event"]
        outbox.put_logs(b"log")
        assert outbox.dropped_logs == 5

    asyncio.run(main())


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> None:
        outbox = Outbox()
        reader = asyncio.ensure_future(anext(aiter(outbox)))
        await asyncio.sleep(0)
        outbox.put(b"1")
        assert await asyncio.wait_for(reader, 5) == b"1"

    asyncio.run(main())
