"""The page that a browser sees at `/`: its files, and what it asks the server for."""

FILES = (
    "answer.js",
    "base.css",
    "charts.js",
    "commands.js",
    "dom.js",
    "figures.js",
    "forms.js",
    "icon.svg",
    "main.js",
    "models.js",
    "page.css",
    "server.js",
    "tensors.js",
    "traffic.js",
    "tryit.js",
)
"""What is served under `/page/`; `index.html` is at `/`. All lie here but base.css, which is the style of reports."""
MODELS, FIGURES = "/page/models", "/page/figures"
PATHS = ("/", *(f"/page/{name}" for name in FILES))
"""What is the same on every server, and says nothing of its models."""
