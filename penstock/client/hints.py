"""Why a server was not reached, or did not let a client in, with what helps: another scheme, a certificate, a key."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from urllib.parse import urlsplit

from penstock.client.access import VARIABLE, Access

_HOW = f"--key-file FILE or {VARIABLE}"
_PROBE_S = 3.0
# OpenSSL's words, of several versions, for first bytes that are no record of TLS.
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"))
_ENDED = (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)


def explained(error: BaseException) -> str:
    """Why a server was not reached, in words that help where it is not trusted."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; name the authority's file with --ca"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {_reason(error) or error}"
    return str(getattr(error, "strerror", None) or error)


def wrong_scheme(url: str, error: BaseException) -> str:
    """What to ask instead of `url`, if it was `url`'s http or https that went wrong; nothing if it was not.

    Whether a server speaks TLS to whom it broke off without it, it is asked by a handshake, in which nothing is sent.
    """
    secure = urlsplit(url).scheme == "https"
    other = f"http://{url.partition('://')[2]}" if secure else f"https://{url.partition('://')[2]}"
    if secure and isinstance(error, ssl.SSLError) and _reason(error) in _NO_TLS:
        return f"it speaks no TLS there; ask it as {other}"
    if secure and isinstance(error, _ENDED):
        return f"it ended the connection before TLS began; if it speaks none, ask it as {other}"
    if not secure and isinstance(error, (*_ENDED, ConnectionAbortedError, http.client.HTTPException)):
        return _over_tls(url, other)
    return ""


def refusal(url: str, status: int, body: bytes, access: Access) -> str:
    """What to do about an answer that lets nobody in, to be said behind its own sentence; nothing for others."""
    whose = "a" if access.key is None else "another"
    if status in (401, 403):
        return f"; give {whose} key with {_HOW}"
    if status == 503 and access.key is None and _error_of(body) == "not ready":
        return f"; the reasons are told to holders of a key: {_HOW}"
    parts = urlsplit(url)
    if status == 400 and parts.scheme == "http" and _error_of(body) is None:  # as of a proxy, in HTML
        found = _over_tls(url, f"https://{url.partition('://')[2]}")
        return found and f"; {found}"
    return ""


def _error_of(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return None


def _over_tls(url: str, other: str) -> str:
    parts = urlsplit(url)
    if not _speaks_tls(parts.hostname or "", parts.port or 80):
        return ""
    return f"it speaks TLS there; ask it as {other} (--ca FILE trusts an authority of your own)"


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's word for it, which errors of Python's own have not."""
    return getattr(error, "reason", None) or ""


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is told nothing, so it need not be trusted
    try:
        with socket.create_connection((host, port), _PROBE_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in _reason(error)  # which only TLS has, as for a client without a certificate
    except OSError:
        return False
