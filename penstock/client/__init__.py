"""`penstock predict`: files sent to a server's /predict, and its answers as lines, CSV, JSON or pictures.

Needs neither torch nor a runtime nor the server's own packages.
"""
