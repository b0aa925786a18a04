"""Precision: written into the ONNX graph itself, as casts and Q/DQ pairs that every runtime reads alike."""
