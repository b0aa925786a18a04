"""Starting a server: serve, which runs where there is no torch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands import completion
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say

# The options of one panel of --help, which would be twice as long if it named each one's variable.
_where = functools.partial(typer.Option, rich_help_panel="Where it listens", show_envvar=False)
_running = functools.partial(typer.Option, rich_help_panel="How models run", show_envvar=False)
_coming = functools.partial(typer.Option, rich_help_panel="Which models are served", show_envvar=False)
_clients = functools.partial(typer.Option, rich_help_panel="What clients may do", show_envvar=False)
_access = functools.partial(typer.Option, rich_help_panel="Who may come", show_envvar=False)
_ending = functools.partial(typer.Option, rich_help_panel="How it ends", show_envvar=False)
_watching = functools.partial(typer.Option, rich_help_panel="What is told of it", show_envvar=False)


def serve(
    paths: Annotated[list[Path], typer.Argument(help="A repository, artifact folders, or .onnx files.")],
    host: Annotated[str, _where(help="Address to listen on; 0.0.0.0 is everybody.")] = "127.0.0.1",
    port: Annotated[int, _where(min=0, max=65535, help="0 takes any free port.")] = 8000,
    grpc_port: Annotated[
        int | None,
        _where(min=-1, max=65535, help="gRPC's; default: the one after --port; 0 takes any, -1 leaves it out."),
    ] = None,
    device: Annotated[
        str, _running(autocompletion=completion.devices, help="cpu, cuda:0, or several: cuda:0,cuda:1.")
    ] = "cpu",
    instances: Annotated[
        int | None,
        _running(
            min=1,
            help="Batches of each model that run at once on each device; default: 1, and 2 of an engine of TensorRT.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        _running(
            min=1,
            max=options.MOST_AT_ONCE,
            help="Threads of each runner; default: what is measured to be best of its share of the cores, once.",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        _running(
            "--isolate", help="Each runner in a process of its own; one that crashes or hangs takes nothing along."
        ),
    ] = False,
    workers: Annotated[
        int | None,
        _running(
            min=0,
            max=256,
            help="Processes that clients are connected to, beside one that runs the models; 0: one process in all. "
            "Default: 0 on a CPU, half of the cores and 8 at most before a GPU.",
        ),
    ] = None,
    slots_mb: Annotated[
        int | None,
        _running(
            min=1,
            max=65_536,
            help="Memory for requests under way, of each such process, in MiB; no less than --max-body-mb, and more "
            "where bodies are JSON or pictures, whose tensors are larger. Default: 256, or twice --max-body-mb where "
            "that is more.",
        ),
    ] = None,
    busy_poll_us: Annotated[
        int | None,
        _running(
            min=0,
            max=1_000_000,
            help="Microseconds for which a lone request keeps its processes looking for its answer or the next one, "
            "each at the cost of a core, where else they would sleep and be woken; 0: none. Default: 0, and 3000 of "
            "front ends before a GPU with two cores for each.",
        ),
    ] = None,
    max_queue_rows: Annotated[int, _running(min=1, help="Rows that may wait before 503.")] = 1024,
    max_delay_ms: Annotated[
        float, _running(min=0, max=60_000, help="How long rows that met a busy server may wait for a fuller batch.")
    ] = 0.0,
    timeout_s: Annotated[float, _running(min=0.001, max=86_400, help="Seconds for an answer before 503.")] = 30.0,
    run_limit_s: Annotated[
        float,
        _running(min=0.001, max=86_400, help="Seconds after which a batch is held to hang; its runner is replaced."),
    ] = 120.0,
    mode: Annotated[
        str,
        _coming(
            autocompletion=completion.modes,
            help="Who loads and unloads models once the server runs: explicit, clients; none, nobody; poll, the "
            "repository's folders, which are looked at every --poll-s.",
        ),
    ] = "explicit",
    poll_s: Annotated[
        float | None, _coming(min=0.05, max=86_400, help="Seconds between two looks, with --mode poll; default: 15.")
    ] = None,
    load: Annotated[
        list[str] | None, _coming(help="Begin with this model of a repository alone; clients may load the others.")
    ] = None,
    route: Annotated[
        list[str] | None,
        _coming(help="A name for a model, or for several by weight: digits=a:90,b:10"),
    ] = None,
    shadow: Annotated[
        list[str] | None,
        _coming(
            help="Give a share of the requests for a model or route to another model too, and compare their answers: "
            "digits=digits-onnx-int8:0.1"
        ),
    ] = None,
    max_body_mb: Annotated[float, _clients(min=0.001, max=16_384, help="Largest body taken, in MiB.")] = 64.0,
    max_pixels: Annotated[int, _clients(min=1, help="Largest image decoded.")] = 25_000_000,
    max_images: Annotated[int, _clients(min=1, max=1000, help="Images in one request to /predict.")] = 64,
    scaled_decoding: Annotated[
        bool,
        _running(
            "--scaled-decoding",
            help="Decode JPEGs of four times what they are resized to, or more, at 1/2, 1/4 or 1/8: 1.6 to 5 times as "
            "fast, but not training's pixels: of photographs, 0.1 to 1.2 of 255 levels away on average, 20 at most.",
        ),
    ] = False,
    max_connections: Annotated[int, _clients(min=1, help="Connections open at once; more are told 503.")] = 4096,
    idle_limit_s: Annotated[
        float, _clients(min=0.1, max=86_400, help="Seconds that a connection may be idle before it is closed.")
    ] = 75.0,
    receive_limit_s: Annotated[
        float, _clients(min=0.1, max=86_400, help="Seconds from a request's first byte to its last.")
    ] = 60.0,
    allow_shared_memory: Annotated[
        bool, _clients("--allow-shared-memory", help="Clients may name segments of this machine's /dev/shm.")
    ] = False,
    keys: Annotated[
        Path | None,
        _access(
            metavar="FILE", help="API keys, as penstock keys add makes them; read anew when it changes, or at SIGHUP."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        _access(metavar="FILE", help="Certificate in PEM, with its chain, for HTTPS and gRPC; read anew likewise."),
    ] = None,
    tls_key: Annotated[Path | None, _access(metavar="FILE", help="Its private key in PEM, not encrypted.")] = None,
    lame_duck_s: Annotated[
        float,
        _ending(
            min=0,
            max=3600,
            help="Seconds after SIGTERM for which it answers on but is not ready, so that a balancer takes it out; "
            "5 in Kubernetes. SIGINT (^C) waits for none.",
        ),
    ] = 0.0,
    drain_s: Annotated[
        float | None,
        _ending(
            min=0,
            max=86_400,
            help="Seconds for what has begun by then; what takes longer is cut, and the exit status is 1. "
            "Default: --timeout-s and one more.",
        ),
    ] = None,
    no_page: Annotated[
        bool,
        _watching(
            "--no-page",
            help="No page at / for browsers, which shows what is loaded and its traffic, and has a form to try it.",
        ),
    ] = False,
    trace_file: Annotated[
        Path | None,
        _watching(help="Where the protocol's trace extension writes, once a client sets trace_level to TIMESTAMPS."),
    ] = None,
    log_format: Annotated[
        str,
        _watching(
            metavar="text|json",
            autocompletion=completion.log_formats,
            help="What is logged: lines for people, or a JSON object each.",
        ),
    ] = "text",
    log_requests: Annotated[
        str,
        _watching(
            metavar="none|failed|all",
            autocompletion=completion.logged,
            help="Which inference requests are logged; failed: those that the server failed, ten a second at most.",
        ),
    ] = "failed",
    otel: Annotated[
        bool | None,
        _watching(
            "--otel/--no-otel",
            help="Spans of requests go to OpenTelemetry by OTLP over HTTP; default: as the OTEL_* variables say.",
        ),
    ] = None,
) -> None:
    """Serve models over HTTP: /predict for people, /v2 (Open Inference Protocol) for programs.

    Examples: `penstock serve models/` · `penstock serve models/digits-onnx-int8 --port 9000` ·
    `penstock serve some.onnx`

    Each option is a variable of the environment too: --max-delay-ms is PENSTOCK_SERVE_MAX_DELAY_MS. Where both say
    something the command line holds; an unknown variable that begins with PENSTOCK_ is refused.

    SIGTERM and ^C end it once what has begun is answered, with exit status 0; with 1 if any request was cut. A second
    signal ends it at once.
    """
    predict_module = import_stage("penstock.serve.predict", "serve")
    model_module = import_stage("penstock.serve.model", "serve")
    server = import_stage("penstock.serve.server", "serve")
    connections = import_stage("penstock.serve.connection", "serve")
    access = import_stage("penstock.serve.access", "serve")
    lifecycle = import_stage("penstock.serve.lifecycle", "serve")
    routes = import_stage("penstock.serve.routes", "serve")
    shadows = import_stage("penstock.serve.shadow", "serve")
    drain = import_stage("penstock.serve.drain", "serve")
    settings = server.Settings(
        server.Address(host, port, options.grpc_port(grpc_port, port)),
        model_module.Limits(
            max_queue_rows=max_queue_rows,
            max_delay_ms=max_delay_ms,
            instances=instances,
            threads=threads,
            devices=options.devices(device),
            timeout_s=timeout_s,
            run_limit_s=run_limit_s,
            isolate=isolate,
            busy_poll_us=busy_poll_us,
        ),
        predict_module.Bounds(int(max_body_mb * 2**20), max_pixels, max_images, allow_shared_memory, scaled_decoding),
        connections.ConnectionLimits(int(max_body_mb * 2**20), max_connections, idle_limit_s, receive_limit_s),
        trace_file,
        log_format,
        log_requests,
        otel,
        access.AccessFiles(keys, tls_cert, tls_key),
        lifecycle.Lifecycle(
            mode, poll_s, tuple(dict.fromkeys(load or ())), routes.parse(route or ()), shadows.parse(shadow or ())
        ),
        drain.DrainLimits(lame_duck_s, timeout_s + 1 if drain_s is None else drain_s),
        workers,
        slots_mb,
        not no_page,
    )
    if server.serve(paths, settings, say):
        raise typer.Exit(1)
