"""Starting a server: serve, which runs where there is no torch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say

# The options of one panel of --help.
_where = functools.partial(typer.Option, rich_help_panel="Where it listens")
_running = functools.partial(typer.Option, rich_help_panel="How models run")
_clients = functools.partial(typer.Option, rich_help_panel="What clients may do")
_ending = functools.partial(typer.Option, rich_help_panel="How it ends")
_watching = functools.partial(typer.Option, rich_help_panel="What is told of it")


def serve(
    paths: Annotated[list[Path], typer.Argument(help="A repository, artifact folders, or .onnx files.")],
    host: Annotated[str, _where(help="Address to listen on; 0.0.0.0 is everybody.")] = "127.0.0.1",
    port: Annotated[int, _where(min=0, max=65535, help="0 takes any free port.")] = 8000,
    grpc_port: Annotated[
        int | None,
        _where(min=-1, max=65535, help="gRPC's; default: the one after --port; 0 takes any, -1 leaves it out."),
    ] = None,
    device: Annotated[str, _running(help="cpu, or cuda:0.")] = "cpu",
    instances: Annotated[
        int | None,
        _running(min=1, help="Batches of each model that run at once; default: 1, and 2 of an engine of TensorRT."),
    ] = None,
    threads: Annotated[
        int | None, _running(min=1, help="Threads of each runner; default: its share of the cores.")
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
    max_body_mb: Annotated[float, _clients(min=0.001, max=16_384, help="Largest body taken, in MiB.")] = 64.0,
    max_pixels: Annotated[int, _clients(min=1, help="Largest image decoded.")] = 25_000_000,
    max_images: Annotated[int, _clients(min=1, max=1000, help="Images in one request to /predict.")] = 64,
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
    trace_file: Annotated[
        Path | None,
        _watching(help="Where the protocol's trace extension writes, once a client sets trace_level to TIMESTAMPS."),
    ] = None,
) -> None:
    """Serve models over HTTP: /predict for people, /v2 (Open Inference Protocol) for programs.

    Examples: `penstock serve models/` · `penstock serve models/digits-onnx-int8 --port 9000` ·
    `penstock serve some.onnx`

    SIGTERM and ^C end it once what has begun is answered, with exit status 0; with 1 if any request was cut. A second
    signal ends it at once.
    """
    predict_module = import_stage("penstock.serve.predict", "serve")
    model_module = import_stage("penstock.serve.model", "serve")
    server = import_stage("penstock.serve.server", "serve")
    connections = import_stage("penstock.serve.connection", "serve")
    drain = import_stage("penstock.serve.drain", "serve")
    settings = server.Settings(
        server.Address(host, port, options.grpc_port(grpc_port, port)),
        model_module.Limits(
            max_queue_rows=max_queue_rows,
            max_delay_ms=max_delay_ms,
            instances=instances,
            threads=threads,
            device=device,
            timeout_s=timeout_s,
            run_limit_s=run_limit_s,
        ),
        predict_module.Bounds(int(max_body_mb * 2**20), max_pixels, max_images, allow_shared_memory),
        connections.ConnectionLimits(int(max_body_mb * 2**20), max_connections, idle_limit_s, receive_limit_s),
        trace_file,
        drain.DrainLimits(lame_duck_s, timeout_s + 1 if drain_s is None else drain_s),
    )
    if server.serve(paths, settings, say):
        raise typer.Exit(1)
