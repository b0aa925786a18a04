"""Exporting: export, build, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands import checkpoints, completion
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say, working
from penstock.errors import PenstockError


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A .pth, .pt, .ckpt, .safetensors, .pt2 or TorchScript file, or a transformers folder."),
    ],
    format: Annotated[
        str,
        typer.Option(
            autocompletion=completion.formats,
            help="onnx, torchscript, pt2, trt; several with commas; or auto: the fastest here within the budget.",
        ),
    ] = "onnx",
    precision: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.precisions,
            help="fp32 (default), tf32, fp16, bf16, int8, int8-fp16, fp8; several with commas.",
        ),
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
        str | None,
        typer.Option(
            help="Base name, instead of the file's, or FILE-uint8 with that input; variants are NAME-FORMAT-PRECISION."
        ),
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
        str | None,
        typer.Option(
            autocompletion=completion.flavors, help="tensorrt or tensorrt-rtx; default: the first that can build here."
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Ranges that an engine is tuned for beside the whole one, batch=1,1,1 or batch=1,1,1;seq=1,32,64; may "
            "be repeated."
        ),
    ] = None,
    workspace: Annotated[
        int | None, typer.Option(min=1, max=1_048_576, help="The builder's scratch memory on the GPU, in MiB.")
    ] = None,
    builder_level: Annotated[
        int | None, typer.Option(min=0, max=5, help="The builder's effort, 0 to 5; default: TensorRT's own, 3.")
    ] = None,
    hardware_compat: Annotated[
        str,
        typer.Option(
            autocompletion=completion.compatibilities,
            help="GPUs that an engine runs on: none (its own kind), ampere+, same-cc.",
        ),
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
    model: checkpoints.ModelOption = None,
    model_args: checkpoints.ModelArgsOption = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="An input, image:float32[batch,3,224,224], where the file or library names none; may be repeated. "
            "uint8: pictures as they are decoded, [batch,height,width,channels]; scaling and normalising go into the "
            "graph."
        ),
    ] = None,
    ema: checkpoints.EmaOption = None,
    key: checkpoints.KeyOption = None,
    prefix: checkpoints.PrefixOption = None,
    allow_partial: checkpoints.PartialOption = None,
    allow_pickle: checkpoints.PickleOption = False,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Real samples for the gate and for scales: .npz with each input by name, a folder of pictures, or a "
            ".csv of texts or table rows; `random` measures scales on random numbers.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Names of the classes: daisy,rose,tulip; or a .txt file, one a line, or a .json file."),
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            autocompletion=completion.calibrations,
            help="Scales of int8 and fp8: entropy, max, percentile, percentile=99.9, or dynamic (int8 by onnxruntime, "
            "measured in each run); default: dynamic for transformers and LSTMs there, else max; for TensorRT entropy, "
            "and max for fp8.",
        ),
    ] = "auto",
    accuracy_drop: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Points of top-1 accuracy on labelled data that a lower precision may cost, instead of the gate's "
            "limits.",
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
    `penstock export --model timm:convnext_tiny convnext.safetensors` ·
    `penstock export --model torchvision:resnet18 --model-args num_classes=3 --labels daisy,rose,tulip flowers.pth` ·
    `penstock export --model ./net.py:Net --input "ids:int64[batch,seq]" --dim seq=1,128,512 ckpt.pth`
    """
    precisions = options.precisions(precision, fp16=fp16, bf16=bf16, int8=int8, fp8=fp8, tf32=tf32, best=best)
    inputs, pixels = options.inputs(input or [])
    override = checkpoints.override(
        model,
        model_args,
        list(inputs),
        dim,
        batch,
        ranges=range,
        keep=keep,
        choice=checkpoints.choice(ema, key, prefix, allow_partial),
        allow_pickle=allow_pickle,
    )
    road = options.road(script, trace)
    formats = options.commas(format, "--format")
    if formats == ("auto",) and not (precision or fp16 or bf16 or int8 or fp8 or tf32 or best):
        precisions = options.EVERY_PRECISION
    pipeline = import_stage("penstock.export.pipeline", "export")
    engine = import_stage("penstock.export.engine.recipe", "export").wishes(
        flavor=trt_flavor,
        workspace_mb=workspace,
        level=builder_level,
        hardware_compat=hardware_compat,
        limit_s=build_limit,
    )
    with working("exporting") as stage:
        pipeline.export(
            pipeline.Request(
                checkpoint=checkpoint,
                formats=formats,
                precisions=precisions,
                output=output,
                name=name,
                override=override,
                fuse=fuse,
                pixels=pixels,
                road=road,
                opset=opset,
                data=None if data in (None, "random") else Path(str(data)),
                random_data=data == "random",
                labels=labels,
                max_error=max_error,
                min_agreement=min_agreement,
                accuracy_drop=accuracy_drop,
                calibration=calibration,
                engine=engine,
                narrower=options.profiles(profile or []),
                defer=defer,
            ),
            say,
            stage,
        )


def build(
    artifact: Annotated[Path, typer.Argument(help="An artifact of `penstock export --format trt`.")],
    trt_flavor: Annotated[
        str | None,
        typer.Option(autocompletion=completion.flavors, help="Instead of the recipe's: tensorrt or tensorrt-rtx."),
    ] = None,
    workspace: Annotated[int | None, typer.Option(min=1, max=1_048_576, help="Instead of the recipe's, MiB.")] = None,
    builder_level: Annotated[int | None, typer.Option(min=0, max=5, help="Instead of the recipe's, 0 to 5.")] = None,
    hardware_compat: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.compatibilities, help="Instead of the recipe's: none, ampere+, same-cc."
        ),
    ] = None,
    build_limit: Annotated[
        float | None, typer.Option(min=1, max=86_400, help="Instead of the recipe's, seconds.")
    ] = None,
) -> None:
    """Build an engine from the graph and recipe in an artifact, deferred or built elsewhere, for this machine.

    It is run against its source's answers, if this machine can run it, and published as the next version.

    Examples: `penstock build models/digits-trt-fp16` · `penstock build models/digits-trt-fp16 --builder-level 5`
    """
    deferred = import_stage("penstock.export.deferred", "export")
    given = {
        "flavor": trt_flavor,
        "workspace_mb": workspace,
        "level": builder_level,
        "hardware_compat": hardware_compat,
        "limit_s": build_limit,
    }
    asked = {field: value for field, value in given.items() if value is not None}
    wishes = import_stage("penstock.export.engine.recipe", "export").wishes(**asked)
    with working("building"):
        deferred.build(artifact, say, **wishes.model_dump(exclude_unset=True))


def verify(
    artifact: Annotated[Path, typer.Argument(help="An artifact's folder.")],
    against: Annotated[
        Path | None, typer.Option(help="The checkpoint to compare with; default: the answers that the artifact stores.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Samples for --against: .npz with each input by name, a folder of pictures, or a .csv."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The architecture again, where it is your own code: a receipt alone gets no code imported."),
    ] = None,
    allow_pickle: checkpoints.PickleOption = False,
    device: Annotated[
        str, typer.Option(autocompletion=completion.devices, help="What runs the artifact: cpu, or cuda:0.")
    ] = "cpu",
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
            replay.verify(artifact, say, device)
        else:
            import_stage("penstock.export.deferred", "export").complete(artifact, say, device)
        return
    verification = import_stage("penstock.export.verification", "export")
    with working("verifying"):
        verification.verify(artifact, against, data, model, say, device, allow_pickle=allow_pickle)
