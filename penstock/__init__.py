"""penstock takes a PyTorch checkpoint to a served, measured model: train, export, serve, bench."""

import os

__version__ = "0.1.0"

# onnxruntime reports its use to its maker unless told not to before it is first imported, here or by ModelOpt.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
