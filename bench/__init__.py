"""Benchmarks: artifacts side by side, interleaved, with raw samples kept."""
