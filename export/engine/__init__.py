"""Engines: building them from typed graphs, in a process of their own. Needs TensorRT, and no torch."""
