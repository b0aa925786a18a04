"""Who may reach a server, and how: its API keys and its certificate, as `penstock serve` is told of them."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.serve import keys, reloading
from penstock.serve.app import Beside
from penstock.serve.certificates import Certificates, bound_handshakes
from penstock.serve.gate import Gate
from penstock.serve.meters import Meters
from penstock.serve.reloading import Reloaded


@dataclass(frozen=True)
class AccessFiles:
    """The file of API keys, and those of a certificate and its private key; None is without.

    Raises:
        PenstockError: there is a certificate without a key, or the other way round.
    """

    keys: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, lacking = ("--tls-cert", "--tls-key") if self.tls_key is None else ("--tls-key", "--tls-cert")
            raise PenstockError(f"{given} {self.tls_cert or self.tls_key}: needs {lacking} FILE beside it; give both")


class Access:
    """The gate and the certificates that files tell of; each None where none is told of.

    Args:
        files: those.
        meters: of keys' rates, where other processes know the keys too.

    Raises:
        PenstockError: a file is bad.
    """

    def __init__(self, files: AccessFiles, meters: Meters | None = None) -> None:
        self._files = files
        self.gate: Gate | None = None
        self.certificates: Certificates | None = None
        self._reloaded: list[Reloaded] = []
        if files.keys is not None:
            self.gate = Gate((), meters=meters)
            self._follow("API keys", (files.keys,), self._read_keys, self.gate.replace)
        if files.tls_cert is not None and files.tls_key is not None:
            held = self.certificates = Certificates(files.tls_cert, files.tls_key)
            self._follow("TLS certificates", (files.tls_cert, files.tls_key), held.read, held.use)
        if self._reloaded:  # until the event loop has it, it must not end the server
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @property
    def scheme(self) -> str:
        return "http" if self.certificates is None else "https"

    def warnings(self, host: str) -> Iterator[str]:
        """What whoever starts a server should know.

        Args:
            host: the address that it listens on, in numbers.
        """
        if self.gate is None:
            if not _is_loopback(host):
                yield "anybody who reaches this address may ask, load and unload models; --keys FILE asks for API keys"
            return
        assert self._files.keys is not None
        if self.certificates is None and not _is_loopback(host):
            yield "API keys go over the network in plain text; --tls-cert FILE --tls-key FILE encrypts them"
        if (fault := keys.open_to_others(self._files.keys)) is not None:
            yield f"--keys {fault}"
        if not len(self.gate):
            yield f"--keys {self._files.keys}: holds no key, so nobody is let in: penstock keys add FILE NAME"

    def beside(self, other: Beside | None) -> Beside | None:
        """What starts `other` and looks after the files as long as that runs."""
        if not self._reloaded:
            return other

        async def start() -> Callable[[float], Awaitable[None]]:
            if self.certificates is not None:
                bound_handshakes(asyncio.get_running_loop())  # which HTTP's listens in once this is done
            stop_looking = reloading.start(self._reloaded)
            stop_other = None if other is None else await other()

            async def stop(within_s: float) -> None:
                if stop_other is not None:
                    await stop_other(within_s)
                await stop_looking()

            return stop

        return start

    def _read_keys(self) -> tuple[keys.Key, ...]:
        assert self._files.keys is not None
        try:
            return keys.read(self._files.keys)
        except PenstockError as error:
            raise PenstockError(f"--keys {error}") from None

    def _follow(
        self, what: str, paths: tuple[Path, ...], read: Callable[[], object], use: Callable[..., object]
    ) -> None:
        self._reloaded.append(Reloaded(what, paths, read, use))


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
