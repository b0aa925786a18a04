"""The command line: its commands in the order of their help, errors in one line, signals as their senders expect."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Annotated

import typer

import penstock
from penstock import options, variables
from penstock.commands import (
    completion,
    data,
    doctoring,
    environment,
    exporting,
    inspecting,
    keys,
    measuring,
    predicting,
    server,
    serving,
    sweeping,
    training,
)
from penstock.commands.brief import asked, brief
from penstock.commands.road import road
from penstock.errors import PenstockError, printable

app = typer.Typer(
    name="penstock",
    help="From a PyTorch checkpoint to a served, measured model.\n\n"
    "The road:  penstock train digits  →  penstock export --format onnx --fp16 runs/digits/best.pth  →  "
    "penstock serve models/  →  penstock bench models/*\n\n"
    "Examples: `penstock inspect ckpt.pth` · `penstock doctor` · `penstock export --help`",
    invoke_without_command=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; an error of the user's is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII must not end a command
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if os.environ.get("_PENSTOCK_COMPLETE") == "complete_bash":
            completion.in_bash(app)
        app(args=options.spelled_out(asked(sys.argv[1:])))
    except PenstockError as error:
        if _terminated:  # a library took the interrupt for a failure of what it was running
            _end_early()
        _end(str(error), 2)
    except KeyboardInterrupt:
        _end_early()
    except SystemExit as error:
        if error.code == 130:  # typer has met the ^C first
            _end_early()
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.strerror is None:
            raise
        _end(f"{_shortened(str(error.filename))}: {error.strerror}" if error.filename else error.strerror, 2)
    except MemoryError as error:
        _end(f"not enough memory: {error}" if str(error) else "not enough memory; try a smaller --batch", 2)


_terminated = False


def _terminate(*_: object) -> None:
    """Like ^C, so that what is half-written is taken away on the way out; a server has its own way to stop."""
    global _terminated
    _terminated = True
    raise KeyboardInterrupt


def _end_early() -> None:
    """Leave as whoever sent the signal expects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a key that is held down the first was heard
    if _terminated:
        _end("terminated", 143, prefix="")
    _end("interrupted", 130, prefix="")


def _end(message: str, code: int, prefix: str = "error: ") -> None:
    """Say why in one line, and leave."""
    print(f"{prefix}{printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}…"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(road())


# The usual options of those that have many.
EXPORT = ("format", "precision", "output", "name", "model", "model_args", "input", "labels", "data", "accuracy_drop")
SERVE = ("host", "port", "device", "instances", "workers", "mode", "route", "keys", "tls_cert", "tls_key")
BENCH = ("seconds", "data", "batch", "device", "json", "html", "compare", "concurrency", "slo_ms")
# --help lists them in this order.
app.command()(training.train)
app.command(name="eval")(training.evaluate)
app.command()(sweeping.sweep)
app.add_typer(data.app, name="data")
app.command(cls=brief(*EXPORT))(exporting.export)
app.command()(exporting.build)
app.command()(exporting.verify)
app.command()(inspecting.inspect)
app.command()(inspecting.diff)
app.command(
    cls=type("Serve", (environment.RefusingUnknown, brief(*SERVE)), {}),
    context_settings={"auto_envvar_prefix": variables.SERVE},
)(server.serve)
app.add_typer(keys.app, name="keys")
app.command()(predicting.predict)
app.command(cls=brief(*BENCH))(measuring.bench)
app.command(cls=environment.ByVariables, context_settings={"auto_envvar_prefix": variables.HEALTH})(serving.health)
app.command()(serving.check)
app.command()(doctoring.doctor)
