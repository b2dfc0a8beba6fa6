"""A head alone in a process: prints its port, ends when its standard input does."""

import asyncio
import os
import sys

from sparkray.config import Settings
from sparkray.head.service import HeadService
from sparkray.head.servicer import HeadServicer
from sparkray.transport import server, tls


async def main() -> None:
    token = bytes.fromhex(os.environ["SPARKRAY_TOKEN"])
    files = tls.from_environment()
    head = HeadService(b"c" * 8, Settings(), token, "1", files)
    serving, port = await server.serve(
        [HeadServicer(head)], host="127.0.0.1", port=0, token=token, tls=files
    )
    head.start(f"127.0.0.1:{port}")
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await head.stop("its test ended")
    await serving.stop(0)


asyncio.run(main())
