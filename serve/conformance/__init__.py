"""Conformance: what the Open Inference Protocol asks of a server, tried on a live one, and what nobody should send."""
