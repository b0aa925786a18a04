"""The process that reads long bodies, with calls beside its own that take their time, or end it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from penstock.serve import reading
from penstock.serve.reader import Found


def sleep(body: memoryview, told: dict[str, Any]) -> Found:
    time.sleep(told["seconds"])
    return {"text": bytes(body).decode()}, {}


def end(body: memoryview, told: dict[str, Any]) -> Found:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}, {}


if __name__ == "__main__":
    reading.main({**reading.CALLS, "sleep": sleep, "end": end})
