"""A server that ends with the doctor that began it: `python -m penstock.doctor.server MODEL.onnx`."""

from __future__ import annotations

import os
import runpy
import sys

from penstock import parents, variables

if __name__ == "__main__":
    parents.end_with_parent()
    # What another server on this machine is told, as in a container: its keys, certificates and ports are not for this.
    for name in [name for name in os.environ if name.startswith(f"{variables.SERVE}_")]:
        del os.environ[name]
    sys.argv = ["penstock", "serve", "--port", "0", "--threads", "1", *sys.argv[1:]]
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
