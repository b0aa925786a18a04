"""What it costs to be woken: `python wakeups.py [COUNT]`. Prints microseconds of one way between two processes.

A byte goes to and fro over a socket, both processes asleep until it comes, or both looking for it all the time, or the
sleeping one only; and the same between two threads. A request of a family passes six such wakings, three of them in
its own processes: client, front end, engine, its thread, engine, front end, client.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

PAUSE_S = 0.002  # so that a processor has gone to sleep too


def echo(connection: socket.socket, *, looks: bool) -> None:
    connection.setblocking(not looks)
    while True:
        try:
            byte = connection.recv(1)
        except BlockingIOError:
            continue
        if not byte:
            return
        connection.send(byte)


def one_way_us(connection: socket.socket, count: int, *, looks: bool, pause_s: float) -> float:
    """The median of half a round."""
    connection.setblocking(not looks)
    found = []
    for _ in range(count):
        time.sleep(pause_s)
        began = time.perf_counter()
        connection.send(b"x")
        while True:
            try:
                connection.recv(1)
                break
            except BlockingIOError:
                continue
        found.append((time.perf_counter() - began) / 2 * 1e6)
    return sorted(found)[count // 2]


def between_processes(count: int, *, looks: bool, pause_s: float) -> float:
    own, other = socket.socketpair()
    child = os.fork()
    if not child:
        own.close()
        echo(other, looks=looks)
        os._exit(0)
    other.close()
    found = one_way_us(own, count, looks=looks, pause_s=pause_s)
    own.close()
    os.waitpid(child, 0)
    return found


def between_threads(count: int, pause_s: float) -> float:
    own, other = socket.socketpair()
    thread = threading.Thread(target=echo, args=(other,), kwargs={"looks": False})
    thread.start()
    found = one_way_us(own, count, looks=False, pause_s=pause_s)
    own.close()
    thread.join()
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for name, pause_s in (("at once", 0.0), (f"after {1e3 * PAUSE_S:g} ms", PAUSE_S)):
        slept = between_processes(count, looks=False, pause_s=pause_s)
        looked = between_processes(count, looks=True, pause_s=pause_s)
        threads = between_threads(count, pause_s)
        print(
            f"{name}: processes asleep {slept:.1f} us, looking {looked:.1f}; threads asleep {threads:.1f}", flush=True
        )


if __name__ == "__main__":
    main()
