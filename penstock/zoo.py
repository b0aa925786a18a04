"""The zoo: models that torchvision, timm and transformers make by name, and what these libraries know of them.

The libraries are imported on use. Nothing is downloaded, and no code is run but theirs.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict

from penstock.errors import PenstockError, require
from penstock.preprocess import ImagePreprocess, Resample
from penstock.signature import Dim

if TYPE_CHECKING:
    from torch import nn

_USUAL_LENGTH = 128
# Arguments by which the libraries fetch weights, or read them from files past penstock's own checks.
_WEIGHTS = ("weights", "weights_backbone", "pretrained", "pretrained_backbone", "checkpoint_path")


class Known(BaseModel):
    """What a library knows of a model beside its weights; what it does not know is empty.

    `inputs` read as `Tensor.parse` does; `dims` are ranges of dimensions other than the batch; `ranges` are the lowest
    and highest values of integer inputs; `task` is `classification` where one class is right of
    a row, `segmentation` where one is of each pixel, and `regression` where values are answered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    inputs: tuple[str, ...] = ()
    dims: dict[str, Dim] = {}
    ranges: dict[str, tuple[float, float]] = {}
    preprocess: ImagePreprocess | None = None
    labels: tuple[str, ...] | None = None
    task: str | None = None


def make(kind: str, name: str) -> Callable[..., nn.Module]:
    """What makes the model `name` of a library, with initial weights, from its keyword arguments.

    Args:
        kind: `torchvision`, `timm` or `transformers`.
        name: the library's name for the model; for transformers a folder with a config.json.

    Raises:
        PenstockError: the library is not installed, has no such model, or the model cannot be exported. What is
            returned raises it for arguments that would load weights, and for fields that a config.json does not have.
    """
    makers = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
    if kind not in makers:
        raise PenstockError(f"--model {kind}:{name}: {kind!r} must be one of {', '.join(makers)}")
    maker = makers[kind](name)

    def made(**kwargs: Any) -> Any:
        for key in _WEIGHTS:
            if kwargs.get(key):
                given = f"--model-args {key}={kwargs[key]!r}"
                raise PenstockError(f"{given}: weights are the checkpoint's, and none are downloaded; leave it out")
        return maker(**kwargs)

    return made


def known(target: str, kwargs: dict[str, Any], module: Any) -> Known:
    """What the library that made `module` from `target` and `kwargs` knows of it; nothing for other targets."""
    kind, _, name = target.partition(":")
    experts = {"torchvision": _of_torchvision, "timm": _of_timm, "transformers": _of_transformers}
    return experts[kind](name, kwargs, module) if kind in experts else Known()


def _torchvision(name: str) -> Callable[..., Any]:
    models = require("torchvision", "models", f"--model torchvision:{name}").models
    names = models.list_models()
    if name not in names:
        raise PenstockError(f"--model torchvision:{name}: torchvision has no such model; {_nearest(name, names)}")
    builder = models.get_model_builder(name)
    if ".quantization." in builder.__module__:
        whole = f"torchvision:{name.removeprefix('quantized_')}"
        raise PenstockError(
            f"--model torchvision:{name}: no format takes quantised modules; export {whole} with --int8"
        )
    # Left out, weights_backbone is a download.
    unloaded = {key: None for key in ("weights", "weights_backbone") if key in inspect.signature(builder).parameters}
    return partial(models.get_model, name, **unloaded)


def _timm(name: str) -> Callable[..., Any]:
    timm = require("timm", "models", f"--model timm:{name}")
    tag = name.partition(".")[2]
    if not timm.is_model(name) or (tag and name not in timm.list_models(include_tags=True)):
        names = timm.list_models(include_tags=bool(tag))
        raise PenstockError(f"--model timm:{name}: timm has no such model; {_nearest(name, names)}")
    return partial(timm.create_model, name, pretrained=False)


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"the nearest are {', '.join(near)}" if near else "none that it has is near"


def _transformers(folder: str) -> Callable[..., Any]:
    library = require("transformers", "models", f"--model transformers:{folder}")
    config, model_class = _configured(library, folder)

    def made(**kwargs: Any) -> Any:
        changed = _changed(config, kwargs)
        with _offline():
            # Left to the file, the attention may be code on a hub, and the numbers of half precision.
            return model_class._from_config(changed, dtype="float32", attn_implementation=None)

    return made


def _configured(library: Any, folder: str) -> tuple[Any, Any]:
    """The config in a folder, and the class of transformers that it names."""
    said, file = f"--model transformers:{folder}", Path(folder) / "config.json"
    try:
        content = json.loads(file.read_bytes())
        (title, *_) = content.get("architectures") or [None]
        if title is None:
            raise ValueError("it names no class under 'architectures'")
    except OSError as error:
        raise PenstockError(
            f"{said}: {file} cannot be read ({error.strerror}); give the folder that save_pretrained wrote"
        ) from None
    except (ValueError, AttributeError, TypeError) as error:
        raise PenstockError(f"{said}: {file} is no config of a model: {error}") from None
    model_class = getattr(library, str(title), None)
    try:
        if not isinstance(model_class, type) or not issubclass(model_class, library.PreTrainedModel):
            raise ValueError(f"{title} is no model class of transformers {library.__version__}")
        with _offline():
            config = library.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # wrong fields raise huggingface_hub's own errors
        custom = f"{title} needs code from the folder (auto_map), which is not run"
        raise PenstockError(f"{said}: {custom if 'auto_map' in content else error}") from None
    return config, model_class


def _changed(config: Any, kwargs: dict[str, Any]) -> Any:
    """A copy of a config with some of its fields set anew."""
    changed = copy.deepcopy(config)
    if hasattr(changed, "use_cache"):
        changed.use_cache = False  # a cache is no tensor, and is of use only to what is called again
    fields = {*config.to_dict(), *config.attribute_map, "num_labels"}
    for name, value in kwargs.items():
        if name not in fields:
            said = f"--model-args {name}={value!r}: {type(config).__name__} has no such field"
            raise PenstockError(f"{said}; {_nearest(name, fields)}")
        setattr(changed, name, value)
    return changed


@contextmanager
def _offline() -> Iterator[None]:
    """Hold Hugging Face's hub client to the files that are here while the block runs."""
    constants: Any = require("huggingface_hub.constants", "models", "--model transformers")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _of_torchvision(name: str, kwargs: dict[str, Any], module: Any) -> Known:
    weights = require("torchvision", "models", f"--model torchvision:{name}").models.get_model_weights(name).DEFAULT
    preset = weights.transforms()
    categories = tuple(weights.meta.get("categories", ()))
    labels = categories if len(categories) == _classes(module) else None
    kind = type(preset).__name__
    if kind == "SemanticSegmentation":
        # The preset keeps a picture's proportions, which an input of one size cannot: it is stretched.
        size = _pair(preset.resize_size)
        preprocess = _preprocess(size, None, preset.interpolation.value, mean=tuple(preset.mean), std=tuple(preset.std))
        image = _floats("image", 3, *size)
        return Known(inputs=(image,), preprocess=preprocess, labels=labels, task="segmentation")
    if kind == "VideoClassification":
        length = re.search(r"clip_len=(\d+)", weights.meta.get("_docs", ""))
        inputs = (_floats("video", 3, int(length[1]), *_pair(preset.crop_size)),) if length else ()
        return Known(inputs=inputs, labels=labels, task="classification")
    if kind != "ImageClassification":
        return Known()
    crop = _pair(preset.crop_size)
    size = _pair(kwargs.get("input_size") or getattr(module, "image_size", crop))
    # Without transform_input the inceptions want other numbers than the preset gives.
    fits = size == crop and getattr(module, "transform_input", True)
    moments = {"mean": tuple(preset.mean), "std": tuple(preset.std)}
    preprocess = _preprocess(size, preset.resize_size[0], preset.interpolation.value, **moments) if fits else None
    return Known(inputs=(_floats("image", 3, *size),), preprocess=preprocess, labels=labels, task="classification")


def _classes(module: Any) -> int | None:
    """The width of a classifier's last layer, or None."""
    from torch import nn

    for layer in reversed(list(module.modules())):
        if isinstance(layer, nn.Linear):
            return layer.out_features
        if isinstance(layer, nn.Conv2d | nn.Conv3d):
            return layer.out_channels
    return None


def _of_timm(name: str, kwargs: dict[str, Any], module: Any) -> Known:
    data = require("timm.data", "models", f"--model timm:{name}")
    source = module.pretrained_cfg
    config = data.resolve_data_config({}, pretrained_cfg=source)
    size = _pair(kwargs.get("img_size") or config["input_size"][1:])
    channels = kwargs.get("in_chans", config["input_size"][0])
    classes = 0 if kwargs.get("features_only") else getattr(module, "num_classes", 0)
    labels = tuple(data.ImageNetInfo().label_descriptions())
    trained_on_them = "in1k" in (source.get("tag") or "") and classes == source.get("num_classes") == len(labels)
    return Known(
        inputs=(_floats("image", channels, *size),),
        preprocess=_timm_preprocess(size, config) if channels == 3 else None,
        labels=labels if trained_on_them else None,
        task="classification" if classes else None,
    )


def _timm_preprocess(size: tuple[int, int], config: dict[str, Any]) -> ImagePreprocess | None:
    """timm's eval transform, where it is a stretch, or a resize and a square crop: nothing is padded with the mean."""
    resized = tuple(math.floor(side / config["crop_pct"]) for side in size)
    mode = config["crop_mode"]
    if mode == "squash" and resized == size:
        shorter = None
    elif mode == "center" and size[0] == size[1]:
        shorter = resized[0]
    else:
        return None
    return _preprocess(size, shorter, config["interpolation"], mean=tuple(config["mean"]), std=tuple(config["std"]))


def _preprocess(size: tuple[int, int], shorter: int | None, resample: Any, **moments: Any) -> ImagePreprocess | None:
    """The preprocessing of an RGB `image`, or None for an interpolation that it does not have."""
    if resample not in get_args(Resample):
        return None
    target: Any = {"height": size[0], "width": size[1], "resize_shorter": shorter}
    return ImagePreprocess(input="image", mode="RGB", resample=resample, **target, **moments)


def _of_transformers(name: str, kwargs: dict[str, Any], module: Any) -> Known:
    config, title = module.config, type(module).__name__
    parameters = list(inspect.signature(module.forward).parameters)
    held: dict[str, Any] = {}
    if title.endswith("Classification"):
        one_of_many = config.problem_type in (None, "single_label_classification") and config.num_labels > 1
        per_row = title.endswith(("ForSequenceClassification", "ForImageClassification"))
        values = config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1)
        task = "classification" if one_of_many else "regression" if values else None
        held = {"labels": _named_labels(config.id2label), "task": task if per_row else None}
    sized = isinstance(getattr(config, "image_size", None), int | list | tuple) and not hasattr(config, "num_frames")
    if parameters[0] == "pixel_values" and sized:
        channels = getattr(config, "num_channels", 3)
        return Known(inputs=(_floats("pixel_values", channels, *_pair(config.image_size)),), **held)
    several = {"pixel_values", "decoder_input_ids"} & set(parameters)
    if parameters[0] != "input_ids" or several or not hasattr(config, "vocab_size"):
        return Known(**held)
    ranges = {"input_ids": (0.0, config.vocab_size - 1.0)}
    if "token_type_ids" in parameters and getattr(config, "type_vocab_size", 0) > 1:
        ranges["token_type_ids"] = (0.0, config.type_vocab_size - 1.0)
    names = [item for item in parameters if item in ranges or item == "attention_mask"]
    inputs = tuple(f"{item}:int64[batch,seq]" for item in names)
    return Known(inputs=inputs, dims=_lengths(module), ranges=ranges, **held)


def _named_labels(names: dict[int, str]) -> tuple[str, ...] | None:
    """The labels in the order of their classes, or None where they only count or leave one out."""
    if all(re.fullmatch(r"LABEL_\d+", name) for name in names.values()) or set(names) != set(range(len(names))):
        return None
    return tuple(names[number] for number in range(len(names)))


def _lengths(module: Any) -> dict[str, Dim]:
    """The range of `seq` where the model's positions are counted out, or nothing."""
    longest = getattr(module.config, "max_position_embeddings", None) or 0
    tables = [table for name, table in module.named_modules() if name.endswith("position_embeddings")]
    paddings = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    longest -= max(paddings, default=-1) + 1  # RoBERTa counts positions from after the padding's
    return {"seq": Dim(opt=min(_USUAL_LENGTH, longest), max=longest)} if longest > 0 else {}


def _floats(name: str, *sizes: int) -> str:
    return f"{name}:float32[batch,{','.join(map(str, sizes))}]"


def _pair(size: Any) -> tuple[int, int]:
    """Height and width from one number, or from a sequence of one or two."""
    sides = (size,) if isinstance(size, int) else tuple(size)
    return int(sides[0]), int(sides[-1])
