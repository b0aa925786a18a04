"""Families of errors: which files say them, what they mean, and what to do."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import NamedTuple


class Family(NamedTuple):
    """Errors of one kind.

    `files` are patterns of the files that say them, with spaces; `meaning` is what they have in common, `remedy` what
    to do.
    """

    title: str
    files: str
    meaning: str
    remedy: str

    def has(self, file: str) -> bool:
        """Whether a file's errors are of this kind."""
        return any(fnmatch(file, pattern) for pattern in self.files.split())


FAMILIES = (
    Family(
        "Words of the command line",
        "penstock/options.py penstock/variables.py penstock/commands/* penstock/fields.py",
        "An option's text means nothing, or two options do not go together.",
        "The sentence has the form that is asked for. [The command line](cli.md) has every option with its range.",
    ),
    Family(
        "Something is not installed",
        "penstock/errors.py penstock/engines.py penstock/cuda.py",
        "A stage needs a package that its extra brings, or a GPU's driver or TensorRT is not there.",
        "Run the `pip install` that the sentence ends with; on a GPU machine look at `nvidia-smi` first.",
    ),
    Family(
        "Files and memory",
        "penstock/files.py penstock/cli.py",
        "The disk or the memory is full, a folder is not there, or permissions forbid it. What was half-written is "
        "taken away again.",
        "Make room, or name another folder with the option that the sentence names; a smaller `--batch` takes less "
        "memory.",
    ),
    Family(
        "Checkpoints: opening the file",
        "penstock/weights.py penstock/pickles.py penstock/programs.py penstock/state.py penstock/zoo.py",
        "The file is damaged, is no checkpoint, would run code when it is opened, or holds several sets of weights; "
        "or a model library knows no model of that name.",
        "`penstock inspect FILE` tells what it is. Save `model.state_dict()` where it was trained, say which weights "
        "are meant with `--key`, or, if you trust the file, `--allow-pickle`.",
    ),
    Family(
        "Checkpoints: the architecture and its tensors",
        "penstock/architecture.py penstock/checkpoint.py penstock/proof.py penstock/card.py penstock/origin.py",
        "The class cannot be imported or made, or the file's tensors are not its tensors: missing, left over or of "
        "another shape.",
        "Give `--model` and `--model-args` as in training; `--prefix` where the weights are part of a larger model; "
        "`--allow-partial NAME` where a tensor may keep its initial value.",
    ),
    Family(
        "Modules that cannot be proven",
        "penstock/modules.py penstock/adapter.py penstock/probe.py penstock/synthetic.py export/steadiness.py "
        "export/noise.py",
        "The source itself cannot be called with these inputs, does not answer in tensors, answers differently from "
        "run to run, or a row's answer hangs on the rows beside it. Then nothing can be compared with it.",
        "Put it into eval mode, take randomness and memory out of `forward`, name the inputs as `forward` does; "
        "export for one row, `--batch 1`, where rows hang on one another.",
    ),
    Family(
        "Inputs, shapes and sizes",
        "penstock/signature.py penstock/arrays.py serve/contract.py serve/splits.py",
        "A tensor's name, dtype, shape or size is not what the model takes. Over HTTP it is a 400.",
        "The sentence has what is there and what is taken; `penstock inspect ARTIFACT`, or `GET /v2/models/NAME`, "
        "shows all inputs.",
    ),
    Family(
        "Export: what was asked for",
        "export/request.py export/pipeline.py export/labels.py export/formats/* export/choice.py export/wire.py "
        "export/pictures.py export/precision/* export/lowering.py export/limits.py export/reference.py export/speed.py "
        "export/judging.py",
        "A format cannot do what was asked, samples are missing for scales or for accuracy, or no plan is within the "
        "budget.",
        "Give real samples with `--data`; widen `--max-error` or `--accuracy-drop`; another format or precision. "
        "[Lower precision](../precision.md) has figures.",
    ),
    Family(
        "Export: capturing and writing the graph",
        "export/capture.py export/graph.py export/opsets.py export/recurrent.py export/protos.py export/branches.py "
        "export/fusion.py export/diagnosis.py",
        "PyTorch could not capture the module, or the graph is not what ONNX or the opset allows.",
        "The sentence names the module and its line. Rewrite that line, choose a dimension's range, or another "
        "format: `--format torchscript --script`.",
    ),
    Family(
        "The gate",
        "export/gate.py export/proving.py export/verification.py penstock/evidence.py penstock/replay.py "
        "penstock/parity.py",
        "The export's answers are not its source's, by more than precision and the source's own rounding explain; "
        "nothing was published. Or stored answers do not come again from a published artifact.",
        "An fp32 export that fails is another function: look at the output and the size that are named. Of a lower "
        "precision give a budget (`--max-error`), or more samples. For a published artifact: the machine or its "
        "runtime differs; export or build again there.",
    ),
    Family(
        "Engines",
        "export/deferred.py export/engine/* penstock/runtimes/tensorrt.py penstock/contexts.py penstock/lanes.py "
        "penstock/rows.py",
        "TensorRT refuses a node, an option or a profile; an engine is of another GPU or version; or the GPU has "
        "failed.",
        "`penstock build` on the machine that is to run it; `--workspace`, `--profile` and `--batch` for memory. [A "
        "GPU box](../guides/gpu.md).",
    ),
    Family(
        "Artifacts and receipts",
        "penstock/artifact.py penstock/receipt.py",
        "A folder holds no artifact, files in it are not those of its receipt, or this machine cannot run it.",
        "Copy the whole folder again, or export or build anew; the sentence ends with the command.",
    ),
    Family(
        "Runtimes",
        "penstock/runtimes/__init__.py penstock/runtimes/onnxruntime.py penstock/runtimes/torch.py "
        "penstock/ortvalues.py penstock/trial.py penstock/runtimes/fake.py penstock/laid.py",
        "onnxruntime or PyTorch refuses a file or these values, or crashed over it in the process where it was tried.",
        "`penstock inspect FILE` says what it needs. Values out of a table's range are the request's.",
    ),
    Family(
        "Pictures, texts and rows as inputs",
        "penstock/preprocess.py penstock/preprocessing.py penstock/textual.py penstock/tabular.py "
        "penstock/predictions.py penstock/tables.py penstock/decoding.py",
        "What was sent, or lies in a file, is no picture, too large a one, no text, or a row whose columns are not "
        "the model's. Over HTTP it is a 400.",
        "Send what the sentence asks for: PNG, JPEG, WebP, BMP or GIF; UTF-8; the columns by their names.",
    ),
    Family(
        "Samples and data sets",
        "penstock/datasets.py penstock/arrayfiles.py penstock/sheets.py penstock/evaluation.py penstock/scores.py "
        "penstock/spool.py penstock/data/* penstock/figures.py",
        "What `--data` or a recipe's `dataset` names is not there, cannot be read, or does not fit the model: arrays "
        "by input names, pictures in folders, CSV with its columns.",
        "The sentence has file, line or picture, and the rule. [Training](../training.md) says how each kind of data "
        "lies.",
    ),
    Family(
        "RecordIO",
        "penstock/recordio.py penstock/recordparts.py penstock/irheader.py",
        "A `.rec` file or its index is damaged, or cut off.",
        "`penstock data show FILE` tells where; pack it again with `penstock data pack`.",
    ),
    Family(
        "Inspecting and comparing files",
        "penstock/inspection/* penstock/operators.py penstock/onnxfile.py penstock/protofields.py",
        "A file is none that penstock knows, is damaged, or two models cannot be compared.",
        "The sentence says what was found at its beginning.",
    ),
    Family(
        "Recipes",
        "train/recipe.py train/rules.py train/complaints.py train/overrides.py train/recipefiles.py train/toml.py "
        "train/space.py train/repeating.py",
        "A field is unknown, missing, or breaks a rule, of its own or with another field.",
        "[Recipes](recipes.md) has all fields; `penstock train RECIPE --show` prints what holds.",
    ),
    Family(
        "Training",
        "train/jobs.py train/losses.py train/optim.py train/depths.py train/pretrained.py train/checkpointing.py "
        "train/nets/* train/loaders.py train/loop.py train/learner.py train/history.py train/augment.py "
        "train/cases.py train/features.py train/trackers.py train/board.py train/report*.py train/ema.py "
        "train/gallery.py train/plots.py train/pace.py",
        "The network, the data and the loss do not fit together, or the loss became no number.",
        "The sentence names the field of the recipe. No number: a smaller `optim.lr`, `optim.clip`; the batch that "
        "did it is kept.",
    ),
    Family(
        "Runs: machines, going on, what is kept",
        "train/device.py train/facts.py train/faults.py train/keeper.py train/journal.py train/ranks.py "
        "train/resuming.py train/stopping.py",
        "The machine has not what the recipe asks for, a run lies in the folder already, or what `--resume` would go "
        "on from is not as it was written.",
        "`--name` for another run, `--resume` for the same; `machine.device=cpu` where there is no GPU.",
    ),
    Family(
        "Sweeps",
        "train/sweep.py train/study.py train/worker.py train/crew.py train/strategy.py train/outcome.py "
        "train/tried.py train/sweep?*.py",
        "A sweep's folder is another sweep's, all trials failed, or its database is not one.",
        "[Sweeps](../sweeps.md); `--name` for another one. Each trial's own log says why it ended.",
    ),
    Family(
        "A server that does not start",
        "serve/server.py serve/access.py serve/certificates.py serve/logs.py serve/requestlog.py serve/telemetry.py "
        "serve/declared.py serve/lifecycle.py serve/opening.py serve/settings.py serve/drain.py",
        "An address is in use, a certificate and its key do not belong together, a model is declared twice, or no "
        "model can be served.",
        "Lines above it begin with `NOT serving` and have the reason for each model. `--port 0` takes any free port.",
    ),
    Family(
        "API keys",
        "serve/keys.py serve/gate.py serve/rights.py serve/rates.py serve/guard.py serve/rpcguard.py",
        "A file of keys cannot be used; or a request brought no key (401), one without the right (403), or one over "
        "its rate (429).",
        "`penstock keys list FILE`; [rights](routes.md) by route; after a 429 wait for `Retry-After` seconds.",
    ),
    Family(
        "Requests by the Open Inference Protocol",
        "serve/protocol.py serve/tensors.py serve/fields.py serve/payloads.py serve/replies.py serve/wire.py "
        "serve/streams.py serve/rpc.py serve/rpcserver.py serve/calls.py serve/layouts.py serve/rpcfront.py",
        "An infer request's JSON, binary parts or gRPC message is not what the protocol or the model's metadata "
        "says: 400, INVALID_ARGUMENT.",
        "The sentence names the tensor and the rule. `penstock check URL` shows requests that are right.",
    ),
    Family(
        "Requests to /predict",
        "serve/predict.py serve/bodies.py serve/rows.py serve/recorded.py serve/answers.py serve/app.py "
        "serve/accept.py serve/errors.py",
        "A body's type or content is not what the model takes, `Accept` asks for what there is not (406), or the "
        "model has no words for that form (422).",
        "`/openapi.json` has examples that the server's own models answer.",
    ),
    Family(
        "Bodies: size, coding, time",
        "serve/behind.py serve/limits.py serve/compression.py serve/inflating.py serve/reader.py serve/reading.py "
        "serve/connection.py serve/heads.py serve/rooms.py",
        "A body is longer than `--max-body-mb` (413), in an unknown or damaged coding (415, 400), or did not become "
        "whole in time (408).",
        "Fewer rows in a request, or a higher limit; behind a proxy its own limits too ([nginx](../guides/nginx.md)).",
    ),
    Family(
        "A server that is busy, late or ending",
        "serve/queues.py serve/scheduler.py serve/outcomes.py serve/model.py serve/posts.py serve/instances.py "
        "serve/deadlines.py serve/remote.py serve/tickets.py serve/fronts.py serve/slots.py serve/forward.py "
        "serve/loading.py",
        "The queue is full, an answer could not be given in `--timeout-s`, a runner died or hangs, or the server is "
        "ending: 503, UNAVAILABLE. Tensors that are larger than all of `--slots-mb`: 413.",
        "Ask again after `Retry-After`, as `penstock predict` does. If it lasts: `/metrics`, `/debug/slow`, more "
        "`--instances`.",
    ),
    Family(
        "Models, names and routes of a running server",
        "serve/repository.py serve/routes.py serve/shadow.py serve/control.py serve/polling.py serve/kept.py "
        "serve/mirror.py",
        "A model is not served under that name, may not be loaded by clients (`--mode`), or a route or shadow does "
        "not fit the models behind it.",
        "`POST /v2/repository/index` tells what there is, and why something is not.",
    ),
    Family(
        "Shared memory",
        "serve/sharedmemory.py serve/arena.py",
        "A region is not registered, is too short, or shared memory is not allowed.",
        "`--allow-shared-memory`; register the region with its segment's name and size first.",
    ),
    Family(
        "Traces and slow requests",
        "serve/tracing.py serve/slow.py",
        "A setting of the trace extension is unknown or out of range, or there is no `--trace-file`; a parameter of "
        "`/debug/slow` is none.",
        "The sentence has the values that are taken.",
    ),
    Family(
        "Processes of a server",
        "serve/family.py serve/engine.py serve/frontend.py serve/frames.py serve/isolated.py serve/worker.py "
        "serve/failures.py serve/supervised.py serve/meters.py",
        "One of a server's own processes did not begin, died, or what passed between two of them was cut off.",
        "The server begins it anew; the log has what it said last. Look for memory limits of the container.",
    ),
    Family(
        "Checking a server",
        "serve/conformance/*",
        "`penstock check` does not find the server, a model of it, or an input that its model takes.",
        "Name the model; start it; give the key.",
    ),
    Family(
        "Predicting",
        "penstock/client/* penstock/health.py",
        "A server is not reached, lets nobody in, or takes another kind of input than the files hold.",
        "The sentence says what helps: another scheme, `--ca`, a key, `--model`.",
    ),
    Family(
        "Measuring artifacts",
        "bench/measure.py bench/footprint.py bench/operations.py bench/peaks.py bench/source.py bench/recorded.py "
        "bench/compare.py bench/pairs.py bench/contrast.py bench/verdict.py bench/rounds.py bench/figures.py "
        "bench/statistics.py bench/amounts.py",
        "Nothing given runs here, samples do not fit, or a file of results is none or cannot be compared with the "
        "other.",
        "Each artifact's reason stands in the sentence. [Measuring](../bench.md), [comparing](../bench_reports.md).",
    ),
    Family(
        "Measuring servers",
        "bench/target.py bench/sources.py bench/datafiles.py bench/payloads.py bench/rehearsal.py bench/answers.py "
        "bench/fleet.py bench/loadgen.py bench/scenarios.py bench/loads.py bench/generator.py bench/calls.py "
        "bench/httpanswers.py bench/frames.py bench/server.py bench/runs.py bench/search.py bench/connections.py "
        "bench/objective.py bench/schedule.py bench/stages.py bench/pacing.py",
        "The server or its model is not there, what is to be sent does not fit, or an answer is not the one that is "
        "due.",
        "Ask once by hand (`penstock predict`), then measure. [Measuring servers](../bench_servers.md).",
    ),
)
