"""The command line: train, eval, export, build, verify, inspect, diff, serve, predict, check, bench, health."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import penstock
from penstock import options
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="From a PyTorch checkpoint to a served, measured model.\n\n"
    "The road:  penstock train digits  →  penstock export --format onnx --fp16 runs/digits/best.pth  →  "
    "penstock serve models/  →  penstock bench models/*",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Architecture: torchvision:resnet18, timm:NAME, transformers:FOLDER, pkg.nets:Net or ./net.py:Net."
    ),
]
ModelArgsOption = Annotated[list[str] | None, typer.Option(help="Its arguments, NAME=VALUE; may be repeated.")]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An input, image:float32[batch,3,224,224], where the file or library names none; may be repeated."
    ),
]
EmaOption = Annotated[
    bool | None,
    typer.Option("--ema/--no-ema", help="Averaged or plain weights; default: averaged where there are any."),
]
KeyOption = Annotated[
    str | None, typer.Option(help="Where in the file the weights are: generator, or checkpoint.model.")
]
PrefixOption = Annotated[
    str | None, typer.Option(help="Take only the tensors whose names begin so, and strip it: 'model.', with its dot.")
]
PartialOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Tensors (a name, or a pattern as head.*) that may stay at their initial value; may be repeated."
    ),
]
PickleOption = Annotated[
    bool, typer.Option("--allow-pickle", help="Run the code that the file holds, after listing what it imports.")
]


def main() -> None:
    """Run the command line; an error of the user's is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII must not end a command
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=options.spelled_out(sys.argv[1:]))
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
    if _terminated:
        _end("terminated", 143, prefix="")
    _end("interrupted", 130, prefix="")


def _end(message: str, code: int, prefix: str = "error: ") -> None:
    """Say why in one line, and leave."""
    print(f"{prefix}{' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}…"


def _say(line: str) -> None:
    print(line, flush=True)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (digits), or a .toml file.")],
    output: Annotated[Path, typer.Option(help="Folder for runs; checkpoints go to OUTPUT/NAME.")] = Path("runs"),
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Train a recipe and leave best.pth and last.pth.

    Example: `penstock train digits --epochs 10`
    """
    recipes = _stage("penstock.train.recipe", "train")
    job = recipes.load(recipe, epochs=epochs, seed=seed)
    loop = _stage("penstock.train.loop", "train")
    trained = loop.train(job, output / job.name, progress=progress and sys.stderr.isatty())
    _say(
        f"trained {job.name} for {job.epochs} epochs in {trained.seconds:.1f} s: "
        f"{_percent(trained.score)} on the held-out test part"
    )
    _say(f"best {trained.best}   last {trained.last}   logs {trained.logs}")


@app.command(name="eval")
def evaluate(
    path: Annotated[Path, typer.Argument(help="A checkpoint file, or an artifact's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled data: .npz with each input by name and class numbers as `labels`, or a folder of pictures "
            "for each class."
        ),
    ] = None,
    model: ModelOption = None,
    model_args: ModelArgsOption = None,
    input: InputOption = None,
    ema: EmaOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
    allow_pickle: PickleOption = False,
) -> None:
    """Score a checkpoint or an artifact on its held-out split, or on data of yours.

    Example: `penstock eval models/digits-onnx-int8`
    """
    from penstock import artifact, datasets, evaluation

    if path.is_dir() and not (path / "config.json").is_file():
        found = artifact.read(path)
        about: Any = found.receipt
        runner: Any = found.load()
    else:
        checkpoint = _stage("penstock.checkpoint", "train")
        choice = _choice(ema, key, prefix, None)
        override = _override(model, model_args, input, choice=choice, allow_pickle=allow_pickle)
        loaded = checkpoint.load(path, override, _say)
        about = loaded.card
        runner = _stage("penstock.runtimes.torch", "train").TorchRunner(loaded.adapted(), about.signature)
    given = datasets.read(data, about.preprocess, about.labels) if data else None
    rows = given or evaluation.held_out(about.dataset, about.preprocess)
    about.signature.check(rows.inputs, limit_batch=False)
    with runner:
        score = evaluation.evaluate(runner, rows, about.signature)
    _say(f"{path}: {_percent(score)}")


@app.command()
def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A .pth, .pt, .ckpt, .safetensors, .pt2 or TorchScript file, or a transformers folder."),
    ],
    format: Annotated[
        str,
        typer.Option(
            help="onnx, torchscript, pt2, trt; several with commas; or auto: the fastest here within the budget."
        ),
    ] = "onnx",
    precision: Annotated[
        str | None, typer.Option(help="fp32 (default), tf32, fp16, bf16, int8, int8-fp16, fp8; several with commas.")
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Short for --precision fp16.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Short for --precision bf16.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Short for --precision int8.")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="Short for --precision fp8 (E4M3, TensorRT).")] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Short for --precision tf32: a TensorRT engine's float32 on tensor cores.")
    ] = False,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Short for --precision int8-fp16: a TensorRT engine in int8 as far as the budget takes it."
        ),
    ] = False,
    output: Annotated[Path, typer.Option(help="The model repository to write into.")] = Path("models"),
    name: Annotated[
        str | None, typer.Option(help="Base name, instead of the file's; variants are NAME-FORMAT-PRECISION.")
    ] = None,
    fuse: Annotated[bool, typer.Option(help="Fold BatchNorm into the layer before it; re-parameterise RepVGG.")] = True,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="[auto]", help="TorchScript by scripting; `--script auto` (default) traces if that is right."
        ),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="TorchScript by tracing, or not at all.")] = False,
    opset: Annotated[int | None, typer.Option(min=1, help="ONNX opset, exactly; default: 18.")] = None,
    trt_flavor: Annotated[
        str | None, typer.Option(help="tensorrt or tensorrt-rtx; default: the first that can build here.")
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Ranges that an engine is tuned for beside the whole one, batch=1,1,1 or batch=1,1,1;seq=1,32,64; may "
            "be repeated."
        ),
    ] = None,
    workspace: Annotated[
        int | None, typer.Option(min=1, help="The builder's scratch memory on the GPU, in MiB.")
    ] = None,
    builder_level: Annotated[
        int | None, typer.Option(min=0, max=5, help="The builder's effort, 0 to 5; default: TensorRT's own, 3.")
    ] = None,
    hardware_compat: Annotated[
        str, typer.Option(help="GPUs that an engine runs on: none (its own kind), ampere+, same-cc.")
    ] = "none",
    build_limit: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds that building an engine may take.")
    ] = 3600,
    defer: Annotated[
        bool,
        typer.Option("--defer", help="Leave the engine to `penstock build`, on the machine that is to run it."),
    ] = False,
    batch: Annotated[
        str | None, typer.Option(help="Rows in one run: MAX, or MIN,OPT,MAX; default: 1,8,64, or what the file says.")
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option(help="Range of a dynamic dimension, seq=1,128,512; may be repeated.")
    ] = None,
    range: Annotated[
        list[str] | None,
        typer.Option(help="Values of an input, ids=0,30521 or lengths=1,seq, for synthetic samples; may be repeated."),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="An output to keep, of several; may be repeated.")] = None,
    model: ModelOption = None,
    model_args: ModelArgsOption = None,
    input: InputOption = None,
    ema: EmaOption = None,
    key: KeyOption = None,
    prefix: PrefixOption = None,
    allow_partial: PartialOption = None,
    allow_pickle: PickleOption = False,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Real samples for the gate and for scales: .npz with each input by name, or a folder of pictures; "
            "`random` measures scales on random numbers.",
        ),
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="Scales of int8 and fp8: entropy, max, percentile, percentile=99.9, or dynamic (int8 by onnxruntime, "
            "measured in each run); default: dynamic for transformers and LSTMs there, else max; for TensorRT entropy, "
            "and max for fp8."
        ),
    ] = "auto",
    accuracy_drop: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Points of top-1 accuracy on labelled data that a lower precision may cost, instead of the gate's "
            "limits; as few nodes stay in float32 as that takes.",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Relative L2 error that may pass; default: 32 times the source's noise, and at least 0.01 for fp16, "
            "0.05 for bf16, 0.15 for int8 and fp8. A lower precision keeps nodes in float32 until it is met.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Top-1 agreement asked for; default: 0.995, for fp16 0.99, bf16 0.98, int8 and fp8 0.97.",
        ),
    ] = None,
) -> None:
    """Export a checkpoint; every variant is proven against its source before it is published.

    Examples: `penstock export --format trt --fp16 ckpt.pth` ·
    `penstock export --format auto --accuracy-drop 0.5 ckpt.pth` ·
    `penstock export --int8 --accuracy-drop 0.5 --data pictures/ ckpt.pth` ·
    `penstock export --model torchvision:resnet18 resnet18.pth` ·
    `penstock export --format onnx,torchscript,pt2 --model timm:convnext_tiny convnext.safetensors` ·
    `penstock export --model ./net.py:Net --input "ids:int64[batch,seq]" --dim seq=1,128,512 ckpt.pth`
    """
    precisions = options.precisions(precision, fp16=fp16, bf16=bf16, int8=int8, fp8=fp8, tf32=tf32, best=best)
    override = _override(
        model,
        model_args,
        input,
        dim,
        batch,
        ranges=range,
        keep=keep,
        choice=_choice(ema, key, prefix, allow_partial),
        allow_pickle=allow_pickle,
    )
    road = options.road(script, trace)
    formats = options.commas(format, "--format")
    if formats == ("auto",) and not (precision or fp16 or bf16 or int8 or fp8 or tf32 or best):
        precisions = options.EVERY_PRECISION
    pipeline = _stage("penstock.export.pipeline", "export")
    engine = _stage("penstock.export.engine.recipe", "export").wishes(
        flavor=trt_flavor,
        workspace_mb=workspace,
        level=builder_level,
        hardware_compat=hardware_compat,
        limit_s=build_limit,
    )
    with _working("exporting"):
        pipeline.export(
            pipeline.Request(
                checkpoint=checkpoint,
                formats=formats,
                precisions=precisions,
                output=output,
                name=name,
                override=override,
                fuse=fuse,
                road=road,
                opset=opset,
                data=None if data in (None, "random") else Path(str(data)),
                random_data=data == "random",
                max_error=max_error,
                min_agreement=min_agreement,
                accuracy_drop=accuracy_drop,
                calibration=calibration,
                engine=engine,
                narrower=options.profiles(profile or []),
                defer=defer,
            ),
            _say,
        )


@app.command()
def build(
    artifact: Annotated[Path, typer.Argument(help="An artifact of `penstock export --format trt`.")],
    trt_flavor: Annotated[str | None, typer.Option(help="Instead of the recipe's: tensorrt or tensorrt-rtx.")] = None,
    workspace: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's, MiB.")] = None,
    builder_level: Annotated[int | None, typer.Option(min=0, max=5, help="Instead of the recipe's, 0 to 5.")] = None,
    hardware_compat: Annotated[
        str | None, typer.Option(help="Instead of the recipe's: none, ampere+, same-cc.")
    ] = None,
    build_limit: Annotated[
        float | None, typer.Option(min=1, max=86_400, help="Instead of the recipe's, seconds.")
    ] = None,
) -> None:
    """Build an engine from the graph and recipe in an artifact, deferred or built elsewhere, for this machine.

    It is run against its source's answers, and published as the next version.

    Examples: `penstock build models/digits-trt-fp16` · `penstock build models/digits-trt-fp16 --builder-level 5`
    """
    deferred = _stage("penstock.export.deferred", "export")
    given = {
        "flavor": trt_flavor,
        "workspace_mb": workspace,
        "level": builder_level,
        "hardware_compat": hardware_compat,
        "limit_s": build_limit,
    }
    asked = {field: value for field, value in given.items() if value is not None}
    wishes = _stage("penstock.export.engine.recipe", "export").wishes(**asked)
    with _working("building"):
        deferred.build(artifact, _say, **wishes.model_dump(exclude_unset=True))


@app.command()
def verify(
    artifact: Annotated[Path, typer.Argument(help="An artifact's folder.")],
    against: Annotated[
        Path | None, typer.Option(help="The checkpoint to compare with; default: the answers that the artifact stores.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Samples for --against: .npz with each input by name, or a folder of pictures.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The architecture again, where it is your own code: a receipt alone gets no code imported."),
    ] = None,
    allow_pickle: PickleOption = False,
    device: Annotated[str, typer.Option(help="What runs the artifact: cpu, or cuda:0.")] = "cpu",
) -> None:
    """Prove a published artifact again: its digests, and its answers.

    Examples: `penstock verify models/digits-onnx-fp16` ·
    `penstock verify models/digits-onnx-fp16 --against runs/digits/best.pth --data samples.npz`
    """
    if against is None:
        if data is not None:
            raise PenstockError("--data needs --against CKPT: the answers to new samples come from the source")
        from penstock import artifact as artifacts
        from penstock import replay

        if artifacts.read(artifact).receipt.verification.engine_run:
            replay.verify(artifact, _say, device)
        else:
            _stage("penstock.export.deferred", "export").complete(artifact, _say, device)
        return
    verification = _stage("penstock.export.verification", "export")
    with _working("verifying"):
        verification.verify(artifact, against, data, model, _say, device, allow_pickle=allow_pickle)


@app.command()
def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, TorchScript, .pt2, .safetensors or ONNX file, an engine, samples (.npz), an artifact, "
            "a repository, or a transformers folder."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a file is, what it needs, what it promises, and the command to go on with. Nothing in it is run.

    Examples: `penstock inspect ckpt.pth` · `penstock inspect models/digits-onnx-fp16` · `penstock inspect some.onnx`
    """
    from penstock import inspection

    inspection.show(inspection.inspect(file), as_json=json)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="An artifact's folder, or an ONNX file.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Rows in a timed run; default: the usual number.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured time for each.")] = 1.0,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="As JSON, all nodes.")] = False,
) -> None:
    """Two models side by side: operators, shapes, precision of each node, size, error, and latency, interleaved.

    Example: `penstock diff models/digits-onnx-fp32 models/digits-onnx-int8`
    """
    from penstock.inspection import diff as differences

    differences.show(differences.diff(first, second, batch=batch, seconds=seconds, device=device), as_json=json)


@app.command()
def serve(
    paths: Annotated[list[Path], typer.Argument(help="A repository, artifact folders, or .onnx files.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is everybody.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=-1, max=65535, help="gRPC's; default: the one after --port; 0 takes any, -1 leaves it out."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Batches of each model that run at once; default: 1, and 2 of an engine of TensorRT."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each runner; default: its share of the cores.")
    ] = None,
    max_queue_rows: Annotated[int, typer.Option(min=1, help="Rows that may wait before 503.")] = 1024,
    max_delay_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="How long rows that met a busy server may wait for a fuller batch.")
    ] = 0.0,
    timeout_s: Annotated[float, typer.Option(min=0.001, max=86_400, help="Seconds for an answer before 503.")] = 30.0,
    max_body_mb: Annotated[float, typer.Option(min=0.001, max=16_384, help="Largest body taken, in MiB.")] = 64.0,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest image decoded.")] = 25_000_000,
    max_images: Annotated[int, typer.Option(min=1, max=1000, help="Images in one request to /predict.")] = 64,
    allow_shared_memory: Annotated[
        bool, typer.Option("--allow-shared-memory", help="Clients may name segments of this machine's /dev/shm.")
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option(help="Where the protocol's trace extension writes, once a client sets trace_level to TIMESTAMPS."),
    ] = None,
) -> None:
    """Serve models over HTTP: /predict for people, /v2 (Open Inference Protocol) for programs.

    Examples: `penstock serve models/` · `penstock serve models/digits-onnx-int8 --port 9000` ·
    `penstock serve some.onnx`
    """
    predict_module = _stage("penstock.serve.predict", "serve")
    model_module = _stage("penstock.serve.model", "serve")
    server = _stage("penstock.serve.server", "serve")
    server.serve(
        paths,
        server.Address(host, port, options.grpc_port(grpc_port, port)),
        model_module.Limits(
            max_queue_rows=max_queue_rows,
            max_delay_ms=max_delay_ms,
            instances=instances,
            threads=threads,
            device=device,
            timeout_s=timeout_s,
        ),
        predict_module.Bounds(int(max_body_mb * 2**20), max_pixels, max_images, allow_shared_memory),
        _say,
        trace_file,
    )


@app.command()
def predict(
    url: Annotated[str, typer.Argument(help="The server, or its /predict/MODEL.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Pictures, folders of them, quoted patterns; .npz and .npy (tensors), .csv (rows), .txt (a text in "
            "each line), .json (a whole request); - for standard input.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model; default: the only one that is served.")] = None,
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="Labels of each row.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Pictures or rows in one request.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Requests under way at once.")] = 2,
    csv: Annotated[
        Path | None, typer.Option(help="Write file, row, label, score … to this table; what there is, also after ^C.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each row.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for class maps, as PNG.")] = None,
    retries: Annotated[
        int, typer.Option(min=0, max=1000, help="How often to ask again a server that is busy, or not there yet.")
    ] = 5,
    timeout: Annotated[float, typer.Option(min=0.001, max=86_400, help="Seconds for one answer.")] = 60.0,
) -> None:
    """Send files to a server, and print what it answers, in the order of the files.

    Exits with 1 if a file had no answer; the reasons stand on stderr.

    Examples: `penstock predict http://127.0.0.1:8000 digit.png` ·
    `penstock predict http://127.0.0.1:8000/predict/digits-onnx-int8 scans/ --csv digits.csv` ·
    `penstock predict http://127.0.0.1:8000 --model fcn-onnx-fp32 'street/*.jpg' --output maps/` ·
    `penstock predict http://127.0.0.1:8000 samples.npz --top-k 3 --json`
    """
    from penstock.client import run
    from penstock.client.connection import Patience

    wishes = run.Wishes(model, top_k, batch, concurrency, Patience(retries, timeout), csv, json, output)
    if run.predict(url, files, wishes, lambda line: print(line, file=sys.stderr, flush=True)):
        raise typer.Exit(1)


@app.command()
def bench(
    paths: Annotated[list[Path], typer.Argument(help="Artifact folders or repositories.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,32",
    reference: Annotated[
        str | None, typer.Option(help="The row that ratios refer to; default: the first fp32.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured time for each variant and batch.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Intra-op threads; default: the runtime's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Data instead of the held-out split, as for eval.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and figures to this file.")] = None,
) -> None:
    """Measure artifacts side by side: latency, throughput, size, accuracy, agreement with the source.

    Example: `penstock bench models/digits-* --batch 1,8,64 --json bench.json`
    """
    measure = _stage("penstock.bench.measure", "bench")
    report = _stage("penstock.bench.report", "bench")
    plan = measure.Plan(
        batches=tuple(options.positive(part, "--batch") for part in options.commas(batch, "--batch")),
        seconds=seconds,
        threads=threads,
        device=device,
        data=data,
    )
    result = measure.measure(paths, plan, reference)
    if json is not None:
        report.write_json(result, json)
    report.show(result)


@app.command()
def health(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    timeout_s: Annotated[float, typer.Option(min=0.001, max=3600, help="Seconds to wait for it.")] = 3.0,
) -> None:
    """Exit with 0 if a server is ready, 1 if not, saying why; for a container's HEALTHCHECK.

    Example: `penstock health http://127.0.0.1:8000`
    """
    from penstock import health as health_check

    ready, why = health_check.ready(url, timeout_s)
    _say(why)
    if not ready:
        raise typer.Exit(1)


@app.command()
def check(
    url: Annotated[str, typer.Argument(help="A server of the Open Inference Protocol, anybody's.")],
    model: Annotated[
        str | None, typer.Option(help="The model to try things on; default: the first that takes one row of ones.")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of its gRPC; default: the port after URL's, if the same server is there."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the verdicts to this file, as JUnit XML.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for one answer.")] = 20.0,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME: VALUE that goes with every request, over HTTP and gRPC; repeatable.")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Also unload the model and load it again; its clients miss it meanwhile.")
    ] = False,
) -> None:
    """Try a live server against the Open Inference Protocol, by extension, and with requests that nobody should send.

    Over HTTP and gRPC. Exits with 1 if a check fails. What a server does not list among its extensions is skipped.

    Examples: `penstock check http://127.0.0.1:8000 --junit check.xml` ·
    `penstock check http://127.0.0.1:8080 --grpc 127.0.0.1:8081 --model iris`
    """
    conformance = _stage("penstock.serve.conformance.run", "serve")
    connection = _stage("penstock.serve.conformance.connection", "serve")
    target = connection.connect(url, model, timeout_s, grpc, reload=reload, headers=header or [])
    verdicts = list(conformance.run(target))
    if junit is not None:
        conformance.write_junit(verdicts, url, junit)
    conformance.show(verdicts, _say)
    failed = sum(verdict.result == "failed" for verdict in verdicts)
    passed = sum(verdict.result == "passed" for verdict in verdicts)
    beside = "" if target.calls is None else f" and gRPC at {target.calls.address}"
    _say(f"{target.url}{beside}, on {target.name}: {passed} of {len(verdicts)} checks passed, {failed} failed")
    if failed:
        raise typer.Exit(1)


def _stage(module: str, extra: str) -> Any:
    """Import a stage's module, or say which extra is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise PenstockError(
            f"this command needs {error.name.split('.')[0]}, which is not installed: pip install 'penstock[{extra}]'"
        ) from None


@contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs, where a person may be looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield


def _override(
    model: str | None,
    model_args: list[str] | None,
    inputs: list[str] | None,
    dims: list[str] | None = None,
    batch: str | None = None,
    *,
    ranges: list[str] | None = None,
    keep: list[str] | None = None,
    choice: Any,
    allow_pickle: bool,
) -> Any:
    """What the options say of a checkpoint that does not say it itself."""
    arguments = _stage("penstock.architecture", "export").parse_arguments(model_args or [])
    return _stage("penstock.checkpoint", "export").Override(
        model=model,
        model_args=arguments,
        inputs=tuple(inputs or []),
        dims=options.size_ranges(dims or []),
        batch=None if batch is None else options.size_range(batch, "--batch"),
        ranges=options.value_ranges(ranges or []),
        keep=tuple(keep or []),
        choice=choice,
        allow_pickle=allow_pickle,
    )


def _choice(ema: bool | None, key: str | None, prefix: str | None, partial: list[str] | None) -> Any:
    """Which of a file's tensors are wanted."""
    return _stage("penstock.state", "export").Choice(ema=ema, key=key, prefix=prefix, partial=tuple(partial or []))


def _percent(score: Any) -> str:
    return f"{score.accuracy:.2%} correct ({score.correct} of {score.samples})"
