"""The modules of this folder import each other by their bare names, as they do when matrix.py is run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
