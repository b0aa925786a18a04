"""Serving: artifacts behind HTTP, batched as they come. Nothing here imports torch."""
