"""TLS: a server's certificate and private key, for HTTP and gRPC, replaced while it runs."""

from __future__ import annotations

import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

_MOST_BYTES = 2**20
# A client that does not finish a handshake, or does not say goodbye, holds a socket so long, instead of 60 s and 30 s.
_HANDSHAKE_S, _GOODBYE_S = 10.0, 1.0


@dataclass(frozen=True)
class Pair:
    """A chain of certificates and the private key of the first, in PEM as it was read; a context that shows them."""

    chain: bytes
    key: bytes = field(repr=False)
    context: ssl.SSLContext = field(repr=False)


class Certificates:
    """The pair that is in use; a new one is taken by handshakes from then on.

    `context` is HTTP's, for as long as the server runs.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._pair: Pair | None = None
        self._given_to_rpc: Pair | None = None
        self.context = _context()
        # Called in each handshake, also of a client that names no server.
        self.context.sni_callback = self._show

    def read(self) -> Pair:
        """The pair in the files, which was tried.

        Raises:
            PenstockError: a file is missing or holds something else, or they do not belong together.
        """
        chain, key = _pem(self._cert, "--tls-cert", b"CERTIFICATE"), _pem(self._key, "--tls-key", b"PRIVATE KEY")
        context = _context()
        self._load(context)
        return Pair(chain, key, context)

    def use(self, pair: Pair) -> None:
        """Take a pair that was read."""
        self._pair = pair

    def _show(self, handshake: ssl.SSLObject, server: str | None, context: ssl.SSLContext) -> None:
        assert self._pair is not None
        handshake.context = self._pair.context

    def rpc_credentials(self) -> Any:
        """gRPC's credentials, which ask for the pair at each handshake."""
        import grpc

        def current() -> Any:
            pair = self._given_to_rpc = self._pair
            assert pair is not None
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])

        def changed() -> Any:
            return None if self._given_to_rpc is self._pair else current()

        return grpc.dynamic_ssl_server_credentials(current(), changed, require_client_authentication=False)

    def _load(self, context: ssl.SSLContext) -> None:
        def asked() -> str:
            raise PenstockError(
                f"--tls-key {self._key}: is encrypted, and nobody is there to ask for its passphrase; decrypt it with: "
                f"openssl pkey -in {self._key} -out plain.pem"
            )

        try:
            context.load_cert_chain(self._cert, self._key, asked)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise PenstockError(
                    f"--tls-key {self._key}: is not the key of the certificate --tls-cert {self._cert}; give two that "
                    "belong together"
                ) from None
            raise PenstockError(
                f"--tls-cert {self._cert} --tls-key {self._key}: cannot be read as PEM: {error.reason or error}"
            ) from None
        except OSError as error:
            raise PenstockError(f"--tls-cert {self._cert} --tls-key {self._key}: {error.strerror}") from None


def tls_limits(loop: Any) -> dict[str, float]:
    """What a loop is to be told when it makes a server of TLS, or a connection of one."""
    limits = {"ssl_handshake_timeout": _HANDSHAKE_S}
    if sys.version_info >= (3, 11) or "uvloop" in type(loop).__module__:
        limits["ssl_shutdown_timeout"] = _GOODBYE_S
    return limits


def bound_handshakes(loop: Any) -> None:
    """Give servers that a loop makes from here on those limits over TLS, for which uvicorn has no settings."""
    limits, made = tls_limits(loop), loop.create_server

    def create_server(*given: Any, **named: Any) -> Any:
        return made(*given, **named, **(limits if named.get("ssl") is not None else {}))

    loop.create_server = create_server


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _pem(path: Path, option: str, kind: bytes) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PenstockError(f"{option} {path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES or kind + b"-----" not in data:
        raise PenstockError(
            f"{option} {path}: holds no {kind.decode().lower()} in PEM, -----BEGIN {kind.decode()}-----"
        )
    return data
