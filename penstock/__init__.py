"""penstock takes a PyTorch checkpoint to a served, measured model: train, export, serve, bench."""

__version__ = "0.1.0"
