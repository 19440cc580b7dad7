"""A relay between a job's coordinator and its workers that hands every byte on after a delay.

python _late_relay.py PORT TARGET_HOST TARGET_PORT DELAY_S
"""

import asyncio
import sys


async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """What comes in goes out this much later, in the same order."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(2**16):
        loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


async def serve(port: int, host: str, target: int, delay_s: float) -> None:
    """Until it is killed."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, target)
        await asyncio.gather(hand_on(reader, far_writer, delay_s), hand_on(far_reader, writer, delay_s))

    server = await asyncio.start_server(relay, "0.0.0.0", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
