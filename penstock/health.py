"""Asking a server whether it is ready, with the standard library alone, for a container's HEALTHCHECK."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request


def ready(url: str, timeout_s: float) -> tuple[bool, str]:
    """Whether the server at `url` says it is ready, and its reason, in one line."""
    if not url.startswith(("http://", "https://")):
        return False, f"{url}: must begin with http:// or https://"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/v2/health/ready", timeout=timeout_s):  # noqa: S310
            return True, f"{url}: ready"
    except urllib.error.HTTPError as error:
        return False, f"{url}: not ready: {_reason(error)}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return False, f"{url}: no answer: {getattr(error, 'reason', error)}"


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(65_536))["error"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
