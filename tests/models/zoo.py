"""The models of the matrix, and the checkpoints that are made of them."""

from __future__ import annotations

import inspect
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock import signature

NETS = Path(__file__).with_name("nets.py")
SEED = 0
# Column of the table -> the format, the road, and the words on the command line that ask for both.
COLUMNS = {
    "torchscript --trace": ("torchscript", "trace", ("--format", "torchscript", "--trace")),
    "torchscript --script": ("torchscript", "script", ("--format", "torchscript", "--script")),
    "torchscript --script auto": ("torchscript", "auto", ("--format", "torchscript", "--script", "auto")),
    "onnx": ("onnx", "auto", ("--format", "onnx")),
    "pt2": ("pt2", "auto", ("--format", "pt2")),
}
Range = tuple[int, int, int]


@dataclass(frozen=True)
class Model:
    """One row of the matrix.

    Attributes:
        name: what the row is called.
        target: as `--model` takes it; `nets:NAME` is a class of nets.py beside this file.
        inputs: as `--input` takes them.
        known: the library names the inputs itself: penstock is not told them.
        args: as `--model-args` takes them.
        config: of a transformers model, saved beside its weights.
        batch: smallest, usual and largest number of rows, as `--batch` takes them.
        dims: the same for other dynamic dimensions, as `--dim` takes them.
        ranges: the smallest and largest value of an input, as `--range` takes them; a dimension's name stands for its
            size. Integers without a range are masks, of ones and then zeros.
        outputs: the names that every format must give its outputs.
        reasons: column -> a pattern of the error that says why this model cannot have that format.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    known: bool = False
    args: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    batch: Range = (1, 4, 16)
    dims: dict[str, Range] = field(default_factory=dict)
    ranges: dict[str, tuple[str, str]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("output",)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """torchvision, timm, transformers or nets."""
        return self.target.partition(":")[0]


def _net(name: str, *inputs: str, **more: Any) -> Model:
    return Model(name, f"nets:{name}", inputs, **more)


def _vision(target: str, *, side: int = 224, batch: Range = (1, 2, 4), **more: Any) -> Model:
    name = target.partition(":")[2]
    return Model(name, target, (f"image:float32[batch,3,{side},{side}]",), **{"known": True, **more}, batch=batch)


_SEQ, _LENGTHS = {"seq": (1, 16, 64)}, {"lengths": ("1", "seq")}
_TOKENS = {"tokens": ("0", "99")}
_WORDS = {"vocab_size": 1000, "max_position_embeddings": 80}
_IDS = {"input_ids": ("0", "999")}
_FIXES = "a trace would fix a value that may depend on the input"
_PYTHON = "Python that TorchScript cannot compile"
_BRANCH = "a branch or a number that depends on the input's values"


def _text(name: str, *inputs: str, config: dict[str, Any], ranges: dict[str, tuple[str, str]]) -> Model:
    shapes = tuple(f"{text}:int64[batch,seq]" for text in inputs)
    return Model(
        name,
        f"transformers:{name}",
        shapes,
        known=True,
        config={**_WORDS, **config},
        batch=(1, 4, 8),
        dims=_SEQ,
        ranges=ranges,
        outputs=("logits",),
        reasons={"torchscript --script": _PYTHON},
    )


MODELS = (
    _vision("torchvision:resnet18"),
    _vision("torchvision:resnet50", side=128, known=False),
    _vision("torchvision:mobilenet_v3_large"),
    _vision("torchvision:efficientnet_b0"),
    _vision("torchvision:vit_b_16", side=112, batch=(1, 2, 3), args={"image_size": 112}),
    _vision("torchvision:convnext_tiny", side=128, batch=(1, 2, 3), known=False),
    _vision(
        "torchvision:fcn_resnet50",
        side=128,
        known=False,
        batch=(1, 2, 3),
        outputs=("out",),
    ),
    _vision("timm:convnextv2_atto"),
    _vision("timm:deit_tiny_patch16_224"),
    _vision("timm:mobilenetv4_conv_small"),
    _vision("timm:repvgg_a0"),
    _vision("timm:swin_tiny_patch4_window7_224", side=112, batch=(1, 2, 3), args={"img_size": 112}),
    _vision("timm:efficientvit_b0"),
    _vision("timm:fastvit_t8", side=256),
    _text(
        "BertForSequenceClassification",
        "input_ids",
        "attention_mask",
        "token_type_ids",
        config={
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "num_labels": 4,
        },
        ranges=_IDS,
    ),
    _text(
        "DistilBertForSequenceClassification",
        "input_ids",
        "attention_mask",
        config={"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256, "num_labels": 4},
        ranges=_IDS,
    ),
    _text(
        "RobertaForMaskedLM",  # its head's weight is its embedding's
        "input_ids",
        "attention_mask",
        "token_type_ids",
        config={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
        ranges=_IDS,
    ),
    _net(
        "LstmClassifier",
        "tokens:int64[batch,seq]",
        "lengths:int64[batch]",
        dims=_SEQ,
        ranges={**_TOKENS, **_LENGTHS},
    ),
    _net("GruClassifier", "features:float32[batch,seq,12]", dims=_SEQ),
    _net(
        "ValuesDecide",
        "x:float32[batch,8]",
        "steps:int64[batch]",
        ranges={"steps": ("0", "6")},
        reasons={"torchscript --trace": _FIXES, "onnx": _BRANCH, "pt2": _BRANCH},
    ),
    _net(
        "ValuesDecideInside",
        "x:float32[batch,8]",
        "steps:int64[batch]",
        ranges={"steps": ("0", "6")},
        reasons={
            "torchscript --trace": _FIXES,
            "torchscript --script": _PYTHON,
            "onnx": _BRANCH,
            "pt2": _BRANCH,
        },
    ),
    _net("UnusedArgument", "x:float32[batch,8]", "unused:float32[batch,3]", "y:float32[batch,8]"),
    _net(
        "KeywordOnly",
        "x:float32[batch,8]",
        "scale:float32[batch]",
        "offset:float32[batch,4]",
        reasons={"torchscript --script": "keyword-only parameters .* cannot be given to a script"},
    ),
    _net(
        "NestedTuples",
        "x:float32[batch,8]",
        outputs=("output_0", "output_1_0", "output_1_1.low", "output_1_1.high"),
    ),
    _net("NestedDicts", "x:float32[batch,8]", outputs=("scores.logits", "scores.chances", "inside.hidden")),
    _net("Norm1d", "signal:float32[batch,4,length]", dims={"length": (4, 32, 64)}),
    _net("Norm2d", "image:float32[batch,3,height,width]", dims={"height": (16, 32, 48), "width": (16, 24, 48)}),
    _net("Norm3d", "volume:float32[batch,1,8,16,16]"),
    _net("GroupedConvolutions", "image:float32[batch,3,32,32]"),
    _net("TransposedConvolutions", "features:float32[batch,8,6,6]"),
    _net("SyncNorm", "image:float32[batch,3,16,16]"),
    _net("RepVgg", "image:float32[batch,3,32,32]"),
    _net("TiedLanguageModel", "ids:int64[batch,seq]", dims=_SEQ, ranges={"ids": ("0", "99")}),
    _net("MixedInputs", "kind:int64[batch]", "flags:bool[batch,4]", "x:float32[batch,8]", ranges={"kind": ("0", "9")}),
    _net(
        "EncoderClassifier",
        "tokens:int64[batch,seq]",
        "lengths:int64[batch]",
        dims=_SEQ,
        ranges={**_TOKENS, **_LENGTHS},
    ),
)


def target(model: Model) -> str | None:
    """What `--model` is given; None for a transformers folder, which says itself what it holds."""
    if model.library == "transformers":
        return None
    return f"{NETS}:{model.name}" if model.library == "nets" else model.target


def options(model: Model) -> list[str]:
    """The words of a command line that say all there is to say of a model beside its checkpoint."""
    named = target(model)
    pairs = [
        *([] if named is None else [("--model", named)]),
        *(("--model-args", f"{name}={value!r}") for name, value in model.args.items()),
        *(("--input", text) for text in model.inputs if not model.known),
        *(("--dim", f"{name}={_commas(sizes)}") for name, sizes in model.dims.items()),
        *(("--range", f"{name}={_commas(ends)}") for name, ends in model.ranges.items()),
        ("--batch", _commas(model.batch)),
    ]
    return [word for pair in pairs for word in pair]


def _commas(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


def checkpoint(model: Model, folder: Path) -> Path:
    """Write a checkpoint of `model` into `folder`, the same one each time, and say what penstock is given of it."""
    return save(model, build(model), folder)


def save(model: Model, module: nn.Module, folder: Path) -> Path:
    """Write a module's weights: those of transformers as a folder with config.json, others as a state_dict."""
    if model.library == "transformers":
        module.save_pretrained(folder / model.name)  # type: ignore[operator]
        return folder / model.name
    path = folder / f"{model.name}.pth"
    torch.save(module.state_dict(), path)
    return path


def build(model: Model) -> nn.Module:
    """The module, in eval mode, with weights such as training leaves: the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = _make(model)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        _train_constants(module, generator)
        _train_norms(model, module.eval(), generator)
    return module


def _make(model: Model) -> nn.Module:
    name = model.target.partition(":")[2]
    if model.library == "torchvision":
        import torchvision

        make = torchvision.models.get_model_builder(name)
        # Left out, a backbone's weights are downloaded.
        unloaded = {key: None for key in inspect.signature(make).parameters if key.startswith("weights")}
        return make(**unloaded, **model.args)
    if model.library == "timm":
        import timm

        return timm.create_model(name, pretrained=False, **model.args)
    if model.library == "transformers":
        import transformers

        transformers.utils.logging.disable_progress_bar()
        kind = getattr(transformers, name)
        return kind(kind.config_class(**model.config))
    import nets

    return getattr(nets, name)(**model.args)


def _train_norms(model: Model, module: nn.Module, generator: torch.Generator) -> None:
    """Give each BatchNorm weights of its own, and statistics near those of what reaches it.

    Statistics out of the blue would let the signal die away in a deep network, whose answer is then a constant that
    no fault in a layer can move: the gate would compare nothing.
    """

    def settle(norm: _BatchNorm, reached: tuple[Tensor, ...]) -> None:
        x = reached[0].transpose(0, 1).flatten(1)
        mean, variance = x.mean(dim=1), x.var(dim=1, unbiased=False)
        variance = variance.clamp(min=0.05 * float(variance.mean()))
        noise = torch.randn(mean.shape, generator=generator)
        norm.running_mean.copy_(mean + 0.3 * noise * variance.sqrt())
        norm.running_var.copy_(variance * torch.empty_like(variance).uniform_(0.5, 2, generator=generator))

    handles = []
    for part in module.modules():
        if not isinstance(part, _BatchNorm):
            continue
        part.running_mean.normal_(0, 0.3, generator=generator)  # of one that no input reaches
        part.running_var.uniform_(0.5, 2, generator=generator)
        if part.affine:
            part.weight.uniform_(0.5, 1.5, generator=generator)
            part.bias.normal_(0, 0.3, generator=generator)
        handles.append(part.register_forward_pre_hook(settle))
    if handles:
        answers(model, module, samples(model, sizes(model, 2), SEED))
    for handle in handles:
        handle.remove()


def _train_constants(module: nn.Module, generator: torch.Generator) -> None:
    """Move every parameter that is still one number all over: zero biases, LayerNorms of one, layer scales of 1e-6."""
    for parameter in module.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)


def sizes(model: Model, place: int) -> dict[str, int]:
    """The smallest (place 0), usual (1) or largest (2) size of every dynamic dimension."""
    return {"batch": model.batch[place], **{name: dim[place] for name, dim in model.dims.items()}}


def samples(model: Model, sizes: dict[str, int], seed: int = 1) -> dict[str, Tensor]:
    """Inputs by name that keep the model's ranges; without one floats are normal, booleans either, and integers a mask.

    A mask is ones and then zeros, one at least: a row without any has no answer to speak of.

    Args:
        model: whose inputs they are.
        sizes: the size of each dynamic dimension.
        seed: same seed, same numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for text in model.inputs:
        tensor = signature.Tensor.parse(text)
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        if tensor.dtype.startswith("float"):
            made[tensor.name] = torch.randn(shape, generator=generator)
            continue
        if tensor.name in model.ranges:
            low, high = (sizes.get(end) or int(end) for end in model.ranges[tensor.name])
            values = torch.randint(low, high + 1, shape, generator=generator)
        elif tensor.dtype == "bool":
            values = torch.randint(0, 2, shape, generator=generator)
        else:
            lengths = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
            values = torch.arange(shape[-1]) < lengths
        made[tensor.name] = values.to(getattr(torch, tensor.dtype))
    return made


def answers(model: Model, module: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What the module answers, its tensors in the order in which it nests them."""
    # nn.Module's own names for transformers and for keyword-only arguments; by position for who calls it `x`.
    named = model.library == "transformers" or model.name == "KeywordOnly"
    with torch.inference_mode():
        return leaves(module(**inputs) if named else module(*inputs.values()))


def leaves(answer: Any) -> list[Tensor]:
    """The tensors in an answer, however they are nested."""
    if isinstance(answer, Tensor):
        return [answer]
    held = answer.values() if hasattr(answer, "values") else answer
    return [tensor for value in held for tensor in leaves(value)]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parameters(module: nn.Module) -> int:
    """How many numbers the module has learnt, tied ones once."""
    return sum(math.prod(parameter.shape) for parameter in module.parameters())
