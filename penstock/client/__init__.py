"""`penstock predict`: files sent to a server's /predict or run here, and answers as lines, CSV, JSON or pictures.

Asking a server needs neither torch nor a runtime nor the server's own packages.
"""
