"""A server that ends with the doctor that began it: `python -m penstock.doctor.server MODEL.onnx`."""

from __future__ import annotations

import runpy
import sys

from penstock import parents

if __name__ == "__main__":
    parents.end_with_parent()
    sys.argv = ["penstock", "serve", "--port", "0", "--threads", "1", *sys.argv[1:]]
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
