"""How many requests a key may make: a token bucket, of numbers alone."""

from __future__ import annotations

# A wait that was told is enough, although sums of floats may fall short of it by a rounding or two.
_ROUNDING = 1e-6


class TokenBucket:
    """A token for each request; they come at a rate, and only so many are kept.

    The loose meter of RFC 3290, appendix A: in any t seconds there are at most `burst + rate * t` requests, and whoever
    asks at the rate or below is never refused.

    Args:
        rate: tokens that come in a second.
        burst: the most that are kept, at least 1; so many are there at first.
        now: of a clock in seconds that never goes back.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._at = burst, now

    def take(self, now: float) -> float:
        """0.0 where there was a token, which is taken; else the seconds until there will be one."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if tokens < 1.0 - _ROUNDING:
            self._tokens = tokens
            return (1.0 - tokens) / self.rate
        self._tokens = tokens - 1.0
        return 0.0

    def changed(self, rate: float, burst: float, now: float) -> TokenBucket:
        """The same bucket under another rate: what has been used up is not given back."""
        held = min(self.burst, self._tokens + (now - self._at) * self.rate)
        made = TokenBucket(rate, burst, now)
        made._tokens = min(burst, held)
        return made
