"""Asking a server whether it is ready, with the standard library alone, for a container's HEALTHCHECK."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from penstock import variables
from penstock.client import hints
from penstock.client.access import Access

_NOBODY = Access()


def ready(url: str, timeout_s: float, access: Access = _NOBODY) -> tuple[bool, str]:
    """Whether the server at `url` says it is ready, and its reason, in one line."""
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        return False, f"{url}: must begin with http:// or https://"
    if not _is_address(url):
        return False, f"{url}: must be an address such as http://127.0.0.1:8000"
    request = urllib.request.Request(f"{url.rstrip('/')}/v2/health/ready")  # noqa: S310 (http and https alone: see above)
    for name, value in access.headers.items():
        request.add_unredirected_header(name, value)  # the key is for this server alone
    try:
        context = access.context if url.startswith("https://") else None
        with urllib.request.urlopen(request, timeout=timeout_s, context=context):  # noqa: S310 (http and https alone: see above)
            return True, f"{url}: ready"
    except urllib.error.HTTPError as error:
        body = error.read(65_536)
        return False, f"{url}: not ready: {_reason(error.code, body)}{hints.refusal(url, error.code, body, access)}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", error)
        if isinstance(why, ConnectionRefusedError):
            return False, f"{url}: no answer: {why.strerror}; start it with: penstock serve models/"
        return False, f"{url}: no answer: {hints.wrong_scheme(url, why) or hints.explained(why)}"


def own_url(environ: Mapping[str, str]) -> str:
    """Where a server listens on this machine that is told nothing but what the environment says."""
    scheme = "https" if variables.told(environ, f"{variables.SERVE}_TLS_CERT") else "http"
    host = variables.told(environ, f"{variables.SERVE}_HOST") or "127.0.0.1"
    port = variables.told(environ, f"{variables.SERVE}_PORT") or "8000"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (where clients of all addresses are met)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
