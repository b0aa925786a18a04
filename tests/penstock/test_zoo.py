"""The zoo: library models are made without a download, and what is known of them is what the libraries say."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock import zoo
from penstock.errors import PenstockError
from penstock.signature import Dim, Tensor
from penstock.zoo import Known

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

SIZES = [(640, 480), (333, 501), (97, 61), (1, 9)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"the network was asked for: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)


def known(target: str, on: str = "cpu", **kwargs: Any) -> Known:
    """What is known of a model, made on the meta device where its weights would only take time."""
    kind, _, name = target.partition(":")
    with torch.device(on):
        return zoo.known(target, kwargs, zoo.make(kind, name)(**kwargs))


def pictures(seed: int = 0) -> list[Image.Image]:
    generator = np.random.default_rng(seed)
    return [Image.fromarray(generator.integers(0, 256, (high, wide, 3), np.uint8)) for wide, high in SIZES]


def same(found: Known, reference: Any) -> bool:
    """Whether the preprocessing gives what the library's own transform gives, bit for bit."""
    assert found.preprocess is not None
    return all(
        np.array_equal(found.preprocess.apply(picture), reference(picture)[None].numpy()) for picture in pictures()
    )


@pytest.mark.parametrize("target", ["./net.py:Net", "package.module:Class", "nonsense", "keras:resnet"])
def test_nothing_is_known_of_what_no_library_made(target: str) -> None:
    assert zoo.known(target, {}, torch.nn.Linear(1, 1)) == Known()


def test_a_library_that_is_not_one_of_the_three_is_refused() -> None:
    with pytest.raises(PenstockError, match="--model keras:x: 'keras' must be one of torchvision, timm, transformers"):
        zoo.make("keras", "x")


@pytest.mark.parametrize("kind", ["torchvision", "timm", "transformers"])
def test_a_library_that_is_not_installed_is_named_with_the_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(PenstockError) as caught:
        zoo.make(kind, "x")
    assert f"--model {kind}:x needs {kind}, which is not installed: pip install 'penstock[models]'" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "argument"),
    [
        ("torchvision:squeezenet1_1", {"weights": "DEFAULT"}),
        ("torchvision:squeezenet1_1", {"pretrained": True}),
        ("torchvision:lraspp_mobilenet_v3_large", {"weights_backbone": "DEFAULT"}),
        ("timm:test_resnet", {"pretrained": True}),
        ("timm:test_resnet", {"checkpoint_path": "x.pth"}),
    ],
)
def test_arguments_that_bring_weights_are_refused_by_name(target: str, argument: dict[str, Any]) -> None:
    kind, _, name = target.partition(":")
    ((key, value),) = argument.items()
    with pytest.raises(PenstockError) as caught:
        zoo.make(kind, name)(**argument)
    assert f"--model-args {key}={value!r}" in str(caught.value)
    assert "none are downloaded" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "argument"),
    [
        ("torchvision:squeezenet1_1", {"weights": None}),
        ("torchvision:lraspp_mobilenet_v3_large", {"weights_backbone": None}),
        ("timm:test_resnet", {"pretrained": False}),
    ],
)
def test_arguments_that_ask_for_no_weights_are_taken(target: str, argument: dict[str, Any]) -> None:
    kind, _, name = target.partition(":")
    assert isinstance(zoo.make(kind, name)(**argument), torch.nn.Module)


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("torchvision", "resnet_50", "resnet50"),
        ("timm", "resnett50", "resnet50"),
        ("timm", "resnet18.tv_in1", "resnet18.tv_in1k"),
        ("timm", "hf-hub:timm/resnet18", None),
        ("torchvision", "%%%", "none that it has is near"),
        ("timm", "%%%", "none that it has is near"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(kind: str, name: str, near: str | None) -> None:
    with pytest.raises(PenstockError) as caught:
        zoo.make(kind, name)
    assert f"--model {kind}:{name}: {kind} has no such model; " in str(caught.value)
    assert (near or "") in str(caught.value)


# --- torchvision ---


@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large", "squeezenet1_1"])
def test_a_torchvision_model_and_its_backbone_are_made_without_a_download(name: str) -> None:
    assert isinstance(zoo.make("torchvision", name)(), torch.nn.Module)


def test_quantised_torchvision_models_are_refused_with_the_way_to_int8() -> None:
    with pytest.raises(PenstockError) as caught:
        zoo.make("torchvision", "quantized_resnet18")
    assert "quantised" in str(caught.value)
    assert "export torchvision:resnet18 with --int8" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "side"), [("resnet50", 224), ("efficientnet_b0", 224), ("vit_b_16", 224), ("inception_v3", 299)]
)
def test_a_torchvision_classifier_is_known_by_its_default_weights(name: str, side: int) -> None:
    arguments = {"transform_input": True} if name == "inception_v3" else {}
    found = known(f"torchvision:{name}", "meta", **arguments)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    assert found.inputs == (f"image:float32[batch,3,{side},{side}]",)
    assert found.labels == tuple(weights.meta["categories"])
    assert found.task == "classification"
    assert found.preprocess is not None
    assert (found.preprocess.input, found.preprocess.height, found.preprocess.width) == ("image", side, side)
    assert same(found, weights.transforms())


def test_labels_are_of_as_many_classes_as_the_model_has_or_none() -> None:
    found = known("torchvision:squeezenet1_1", num_classes=3)
    assert (found.labels, found.task) == (None, "classification")
    found = known("timm:test_resnet", num_classes=3)
    assert (found.labels, found.task) == (None, "classification")


@pytest.mark.parametrize(
    ("target", "arguments", "side"),
    [
        ("torchvision:vit_b_16", {"image_size": 64}, 64),
        ("torchvision:vit_h_14", {}, 224),  # its default weights are of 518
        ("torchvision:maxvit_t", {"input_size": (448, 448)}, 448),
    ],
)
def test_a_torchvision_model_of_another_size_than_its_weights_has_no_preprocessing(
    target: str, arguments: dict[str, Any], side: int
) -> None:
    found = known(target, "meta", **arguments)
    assert found.inputs == (f"image:float32[batch,3,{side},{side}]",)
    assert found.preprocess is None


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_an_inception_that_does_not_transform_its_input_has_no_preprocessing(name: str) -> None:
    assert known(f"torchvision:{name}", "meta", init_weights=False).preprocess is None
    assert known(f"torchvision:{name}", "meta", init_weights=False, transform_input=True).preprocess is not None


def test_an_interpolation_that_penstock_does_not_have_gives_no_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    preset = weights.transforms()
    preset.interpolation = SimpleNamespace(value="hamming")
    stand_in = SimpleNamespace(transforms=lambda: preset, meta=weights.meta)
    module = zoo.make("torchvision", "squeezenet1_1")()
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda name: SimpleNamespace(DEFAULT=stand_in))
    found = zoo.known("torchvision:squeezenet1_1", {}, module)
    assert found.inputs
    assert found.preprocess is None


def test_a_segmentation_model_takes_pictures_stretched_to_the_size_of_its_preset() -> None:
    found = known("torchvision:lraspp_mobilenet_v3_large", "meta")
    assert (found.inputs, found.task) == (("image:float32[batch,3,520,520]",), "segmentation")
    assert found.labels is not None
    assert (len(found.labels), found.labels[0], found.labels[15]) == (21, "__background__", "person")
    assert found.preprocess is not None
    assert (found.preprocess.width, found.preprocess.height, found.preprocess.resize_shorter) == (520, 520, None)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8))
    theirs = torchvision.models.segmentation.LRASPP_MobileNet_V3_Large_Weights.DEFAULT.transforms()(image)
    assert np.abs(found.preprocess.apply(image)[0] - theirs.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "shape"), [("r3d_18", "16,112,112"), ("s3d", "128,224,224"), ("mvit_v2_s", "16,224,224")]
)
def test_a_video_model_takes_clips_of_the_length_its_weights_were_measured_with(name: str, shape: str) -> None:
    found = known(f"torchvision:{name}", "meta")
    assert found.inputs == (f"video:float32[batch,3,{shape}]",)
    assert found.task == "classification"
    assert found.labels is not None
    assert len(found.labels) == 400
    assert found.preprocess is None


def test_a_video_model_whose_clips_are_not_told_has_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torchvision.models.get_model_weights("r3d_18").DEFAULT
    monkeypatch.setitem(weights.meta, "_docs", "")
    found = known("torchvision:r3d_18", "meta")
    assert (found.inputs, found.task) == ((), "classification")


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "raft_small"])
def test_nothing_is_known_of_detection_and_optical_flow(name: str) -> None:
    module = zoo.make("torchvision", name)()
    assert zoo.known(f"torchvision:{name}", {}, module) == Known()


# --- timm ---


def test_a_timm_model_is_known_by_its_pretrained_config() -> None:
    found = known("timm:test_resnet")
    module = timm.create_model("test_resnet")
    data = timm.data.resolve_data_config({}, model=module)
    assert found.inputs == ("image:float32[batch,3,160,160]",)
    assert found.task == "classification"
    assert found.labels is not None
    assert len(found.labels) == 1000
    assert found.labels[0].startswith("tench")
    assert same(found, timm.data.create_transform(**data, is_training=False))


@pytest.mark.parametrize(
    ("arguments", "inputs", "task"),
    [
        ({"num_classes": 0}, "image:float32[batch,3,160,160]", None),
        ({"features_only": True}, "image:float32[batch,3,160,160]", None),
        ({"in_chans": 1}, "image:float32[batch,1,160,160]", "classification"),
    ],
)
def test_arguments_of_a_timm_model_change_what_is_known(
    arguments: dict[str, Any], inputs: str, task: str | None
) -> None:
    found = known("timm:test_resnet", **arguments)
    assert (found.inputs, found.task) == ((inputs,), task)
    assert (found.preprocess is None) == ("in_chans" in arguments)
    assert (found.labels is None) == (task is None)


def test_a_timm_model_of_another_size_is_preprocessed_to_it_as_timm_does() -> None:
    found = known("timm:test_vit", img_size=96)
    module = timm.create_model("test_vit", img_size=96)
    data = timm.data.resolve_data_config({"img_size": 96}, model=module)
    assert found.inputs == ("image:float32[batch,3,96,96]",)
    assert same(found, timm.data.create_transform(**data, is_training=False))
    oblong = known("timm:test_vit", img_size=(96, 64))
    assert (oblong.inputs, oblong.preprocess) == (("image:float32[batch,3,96,64]",), None)


def of_config(name: str) -> tuple[Known, Any]:
    """What is known of a timm model by its pretrained config alone, and timm's transform for it."""
    config = timm.models.get_pretrained_cfg(name).to_dict()
    module = SimpleNamespace(pretrained_cfg=config, num_classes=config["num_classes"])
    data = timm.data.resolve_data_config({}, pretrained_cfg=config)
    return zoo.known(f"timm:{name}", {}, module), timm.data.create_transform(**data, is_training=False)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18.tv_in1k",  # centre, 0.875, bilinear
        "resnet18.a1_in1k",  # centre, 0.95, bicubic
        "cait_xxs24_224.fb_dist_in1k",  # centre, 1.0
        "eva_large_patch14_336.in22k_ft_in22k_in1k",  # squash, 1.0
        "vit_base_patch16_sapiens2",  # squash, 1024 x 768
        "inception_v3.tv_in1k",  # mean and std of their own
    ],
)
def test_a_timm_transform_that_is_taken_over_gives_the_same_numbers(name: str) -> None:
    assert same(*of_config(name))


@pytest.mark.parametrize(
    "name",
    [
        "dm_nfnet_f0",  # squash, 0.9
        "deepseek_vit_412m",  # border: padded with the mean
    ],
)
def test_a_timm_transform_that_cannot_be_reproduced_is_left_out(name: str) -> None:
    found, _ = of_config(name)
    assert found.inputs
    assert found.preprocess is None


@pytest.mark.parametrize(
    ("name", "labelled"),
    [
        ("resnet18.a1_in1k", True),
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", True),
        ("vit_tiny_patch16_224.augreg_in21k", False),
        ("resmlp_12_224.fb_dino", False),  # 1000 outputs, of no class
        ("coatnet_0_224", False),  # untrained
    ],
)
def test_imagenet_labels_are_given_to_models_trained_on_its_thousand_classes(name: str, labelled: bool) -> None:
    found, _ = of_config(name)
    assert (found.labels is not None) == labelled


# --- transformers ---

SMALL = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48},
    **{"vocab_size": 60, "max_position_embeddings": 40},
}
FLAT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 60, "n_positions": 40, "pad_token_id": 0}
VIT = {**SMALL, "image_size": 32, "patch_size": 8}
del VIT["vocab_size"], VIT["max_position_embeddings"]


def save(folder: Path, config: str, architecture: str | None, **fields: Any) -> Path:
    made = getattr(transformers, f"{config}Config")(**fields)
    made.architectures = architecture and [architecture]
    made.save_pretrained(folder)
    return folder


def edit(folder: Path, **fields: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def feeds(found: Known, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = [Tensor.parse(text).name for text in found.inputs]
    highest = {name: int(high) for name, (_, high) in found.ranges.items()}
    # From 3: the special tokens of these vocabularies come first.
    return {
        name: torch.randint(3 if name == "input_ids" else 0, highest[name] + 1, (2, length), generator=generator)
        if name in highest
        else torch.ones(2, length, dtype=torch.int64)
        for name in names
    }


IDS, MASK, TYPES = "input_ids:int64[batch,seq]", "attention_mask:int64[batch,seq]", "token_type_ids:int64[batch,seq]"


@pytest.mark.parametrize(
    ("config", "architecture", "fields", "inputs", "longest"),
    [
        ("Bert", "BertForSequenceClassification", SMALL, (IDS, MASK, TYPES), 40),
        ("Bert", "BertModel", {**SMALL, "type_vocab_size": 1}, (IDS, MASK), 40),
        ("Roberta", "RobertaForSequenceClassification", {**SMALL, "type_vocab_size": 1}, (IDS, MASK), 38),
        ("Roberta", "RobertaModel", {**SMALL, "pad_token_id": 4}, (IDS, MASK, TYPES), 35),
        ("MPNet", "MPNetModel", SMALL, (IDS, MASK), 38),
        ("DistilBert", "DistilBertModel", {**SMALL, "n_layers": 2, "n_heads": 2, "dim": 32}, (IDS, MASK), 40),
        ("Albert", "AlbertModel", {**SMALL, "embedding_size": 16}, (IDS, MASK, TYPES), 40),
        ("FNet", "FNetModel", {**SMALL, "type_vocab_size": 4}, (IDS, TYPES), 40),
        ("GPT2", "GPT2ForSequenceClassification", FLAT, (IDS, MASK), 40),
    ],
)
def test_a_text_model_takes_lengths_up_to_its_last_position_and_no_more(
    tmp_path: Path, config: str, architecture: str, fields: dict[str, Any], inputs: tuple[str, ...], longest: int
) -> None:
    folder = save(tmp_path, config, architecture, **fields)
    module = zoo.make("transformers", str(folder))().eval()
    found = zoo.known(f"transformers:{folder}", {}, module)
    assert found.inputs == inputs
    assert found.dims == {"seq": Dim(min=1, opt=longest, max=longest)}
    assert found.ranges["input_ids"] == (0, 59)
    with torch.inference_mode():
        for length in (1, longest):
            assert module(**feeds(found, length))
        with pytest.raises((IndexError, RuntimeError)):
            module(**feeds(found, longest + 1))


def test_the_usual_length_is_128_where_the_model_takes_more(tmp_path: Path) -> None:
    folder = save(tmp_path, "Bert", "BertModel", **{**SMALL, "max_position_embeddings": 512})
    found = known(f"transformers:{folder}")
    assert found.dims == {"seq": Dim(min=1, opt=128, max=512)}
    assert found.ranges == {"input_ids": (0, 59), "token_type_ids": (0, 1)}


@pytest.mark.parametrize(
    ("config", "architecture", "fields"),
    [
        ("T5", "T5EncoderModel", {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}),
        ("XLNet", "XLNetModel", {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 48}),
    ],
)
def test_a_text_model_without_a_last_position_has_no_range_of_lengths(
    tmp_path: Path, config: str, architecture: str, fields: dict[str, Any]
) -> None:
    found = known(f"transformers:{save(tmp_path, config, architecture, vocab_size=60, **fields)}")
    assert found.inputs == (IDS, MASK)
    assert found.dims == {}


def test_a_model_of_two_kinds_of_input_or_two_texts_is_left_to_the_user(tmp_path: Path) -> None:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    fields = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60, **layers}
    bart = known(f"transformers:{save(tmp_path / 'bart', 'Bart', 'BartForSequenceClassification', **fields)}")
    assert (bart.inputs, bart.task) == ((), "classification")
    small = {**SMALL, "projection_dim": 16}
    towers = {"text_config": small, "vision_config": {**VIT, "projection_dim": 16}}
    assert known(f"transformers:{save(tmp_path / 'clip', 'CLIP', 'CLIPModel', **towers)}") == Known()


@pytest.mark.parametrize(
    ("config", "architecture", "fields", "inputs", "task"),
    [
        ("ViT", "ViTForImageClassification", VIT, "pixel_values:float32[batch,3,32,32]", "classification"),
        ("ViT", "ViTModel", {**VIT, "image_size": [32, 64]}, "pixel_values:float32[batch,3,32,64]", None),
        ("ViT", "ViTModel", {**VIT, "num_channels": 1}, "pixel_values:float32[batch,1,32,32]", None),
    ],
)
def test_a_vision_model_takes_pictures_of_its_configs_size(
    tmp_path: Path, config: str, architecture: str, fields: dict[str, Any], inputs: str, task: str | None
) -> None:
    folder = save(tmp_path, config, architecture, **fields)
    module = zoo.make("transformers", str(folder))().eval()
    found = zoo.known(f"transformers:{folder}", {}, module)
    assert found == Known(inputs=(inputs,), task=task)
    _, *sizes = Tensor.parse(inputs).shape
    with torch.inference_mode():
        assert module(torch.zeros(2, *(int(size) for size in sizes)))


@pytest.mark.parametrize(
    ("config", "architecture", "fields"),
    [
        ("ResNet", "ResNetModel", {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}),
        ("VideoMAE", "VideoMAEModel", {**VIT, "num_frames": 4}),
        ("Wav2Vec2", "Wav2Vec2Model", {**SMALL, "conv_dim": (8,), "conv_stride": (2,), "conv_kernel": (3,)}),
    ],
)
def test_a_model_whose_shape_no_config_tells_has_no_inputs(
    tmp_path: Path, config: str, architecture: str, fields: dict[str, Any]
) -> None:
    assert known(f"transformers:{save(tmp_path, config, architecture, **fields)}", "meta") == Known()


@pytest.mark.parametrize(
    ("architecture", "fields", "labels", "task"),
    [
        ("BertForSequenceClassification", {"id2label": {0: "good", 1: "bad"}}, ("good", "bad"), "classification"),
        ("BertForSequenceClassification", {"id2label": {1: "bad", 0: "good"}}, ("good", "bad"), "classification"),
        ("BertForSequenceClassification", {"num_labels": 3}, None, "classification"),
        ("BertForSequenceClassification", {"id2label": {0: "a", 5: "b"}}, None, "classification"),
        ("BertForSequenceClassification", {"num_labels": 1}, None, "regression"),
        ("BertForSequenceClassification", {"problem_type": "regression"}, None, "regression"),
        (
            "BertForSequenceClassification",
            {"problem_type": "multi_label_classification", "id2label": {0: "good", 1: "bad"}},
            ("good", "bad"),
            None,
        ),
        ("BertForTokenClassification", {"id2label": {0: "O", 1: "B"}}, ("O", "B"), None),
        ("BertModel", {"id2label": {0: "good", 1: "bad"}}, None, None),
    ],
)
def test_labels_are_the_configs_and_a_classifier_is_one_whose_answer_is_one_of_many(
    tmp_path: Path, architecture: str, fields: dict[str, Any], labels: tuple[str, ...] | None, task: str | None
) -> None:
    found = known(f"transformers:{save(tmp_path, 'Bert', architecture, **SMALL, **fields)}")
    assert (found.labels, found.task) == (labels, task)


def test_arguments_set_the_configs_fields_anew(tmp_path: Path) -> None:
    folder = save(tmp_path, "Bert", "BertForSequenceClassification", **SMALL, id2label={0: "good", 1: "bad"})
    make: Any = zoo.make("transformers", str(folder))
    assert make(num_labels=3, hidden_size=16).classifier.weight.shape == (3, 16)
    assert make().classifier.weight.shape == (2, 32)
    assert known(f"transformers:{folder}", num_labels=3).labels is None


@pytest.mark.parametrize("name", ["num_label", "save_pretrained", "_attn_implementation", "trust_remote_code"])
def test_an_argument_that_is_no_field_of_the_config_is_refused(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, "Bert", "BertForSequenceClassification", **SMALL)
    with pytest.raises(PenstockError) as caught:
        zoo.make("transformers", str(folder))(**{name: 3})
    assert f"--model-args {name}=3: BertConfig has no such field; " in str(caught.value)
    assert name != "num_label" or "num_labels" in str(caught.value)


def test_a_decoder_answers_without_a_cache(tmp_path: Path) -> None:
    folder = save(tmp_path, "GPT2", "GPT2LMHeadModel", **FLAT)
    module = zoo.make("transformers", str(folder))().eval()
    with torch.inference_mode():
        answer = module(torch.ones(1, 3, dtype=torch.int64))
    assert list(answer) == ["logits"]


def test_a_config_of_half_precision_gives_a_module_of_float32(tmp_path: Path) -> None:
    folder = edit(save(tmp_path, "Bert", "BertModel", **SMALL), dtype="float16", torch_dtype="float16")
    module = zoo.make("transformers", str(folder))()
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_a_config_that_names_attention_code_on_a_hub_gets_the_librarys_own(tmp_path: Path) -> None:
    kernel = "kernels-community/flash-attn"
    folder = edit(save(tmp_path, "Bert", "BertModel", **SMALL), attn_implementation=kernel, _attn_implementation=kernel)
    module: Any = zoo.make("transformers", str(folder))()
    assert module.config._attn_implementation == "sdpa"


def test_the_hub_is_held_off_while_a_model_is_made_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fields = {"backbone": "hf-hub:somebody/else", "num_channels": 3}
    folder = save(tmp_path, "TimmBackbone", "TimmBackbone", **fields)
    make = zoo.make("transformers", str(folder))
    with pytest.raises(Exception, match=r"(?i)offline|local cache"):
        make()
    assert not constants.HF_HUB_OFFLINE


def test_code_that_lies_in_the_folder_is_not_run(tmp_path: Path) -> None:
    folder = save(tmp_path, "Bert", "MineForClassification", **SMALL)
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(folder, auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.MineForClassification"}, model_type="mine")
    for architecture in ("MineForClassification", "BertModel"):
        edit(folder, architectures=[architecture])
        with pytest.raises(PenstockError) as caught:
            zoo.make("transformers", str(folder))
        assert f"{architecture} needs code from the folder (auto_map), which is not run" in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["Nonesuch", "pipeline", "BertConfig", "__name__", 3])
def test_a_config_whose_class_is_no_model_of_transformers_is_refused(tmp_path: Path, name: Any) -> None:
    folder = edit(save(tmp_path, "Bert", "BertModel", **SMALL), architectures=[name])
    with pytest.raises(PenstockError, match=f"--model transformers:{folder}: {name} is no model class of transformers"):
        zoo.make("transformers", str(folder))


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "is no config of a model"),
        ("[]", "is no config of a model"),
        ("\xff", "is no config of a model"),
        ('{"architectures": 3}', "is no config of a model"),
        ('{"model_type": "bert"}', "names no class under 'architectures'"),
        ('{"architectures": [], "model_type": "bert"}', "names no class under 'architectures'"),
        ('{"architectures": ["BertModel"], "model_type": "nonesuch"}', "nonesuch"),
    ],
)
def test_a_config_that_is_none_is_refused_by_its_path(tmp_path: Path, content: str, rule: str) -> None:
    (tmp_path / "config.json").write_text(content, "latin-1")
    with pytest.raises(PenstockError) as caught:
        zoo.make("transformers", str(tmp_path))
    assert f"--model transformers:{tmp_path}: " in str(caught.value)
    assert rule in str(caught.value)


def test_a_field_of_another_type_than_the_config_wants_ends_in_an_error(tmp_path: Path) -> None:
    folder = edit(save(tmp_path, "Bert", "BertModel", **SMALL), hidden_size="wide")
    with pytest.raises((PenstockError, TypeError)):  # transformers 4 finds it when the module is made
        zoo.make("transformers", str(folder))()


@pytest.mark.parametrize("name", ["", "missing", "google-bert/bert-base-uncased"])
def test_a_folder_without_a_config_is_refused_with_what_to_give(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with pytest.raises(PenstockError) as caught:
        zoo.make("transformers", str(folder))
    assert f"{folder / 'config.json'} cannot be read (No such file or directory)" in str(caught.value)
    assert "give the folder that save_pretrained wrote" in str(caught.value)


# --- all of them ---


@pytest.mark.models
def test_every_torchvision_classifier_has_its_labels_and_its_presets_numbers() -> None:
    for name in torchvision.models.list_models(exclude=("quantized_*", "regnet_*")):  # regnets cannot be made on meta
        weights = torchvision.models.get_model_weights(name).DEFAULT
        preset = weights.transforms()
        if type(preset).__name__ != "ImageClassification":
            continue
        found = known(f"torchvision:{name}", "meta")
        assert found.labels == tuple(weights.meta["categories"]), name
        assert known(f"torchvision:{name}", "meta", num_classes=7).labels is None, name
        assert (found.preprocess is None) == (name in ("vit_h_14", "inception_v3", "googlenet")), name
        assert found.preprocess is None or same(found, preset), name


@pytest.mark.models
def test_every_timm_transform_is_given_to_the_bit_or_left_out() -> None:
    seen = set()
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config({}, pretrained_cfg=timm.models.get_pretrained_cfg(name).to_dict())
        if str(config) in seen:
            continue
        seen.add(str(config))
        found, transform = of_config(name)
        stretched = config["crop_mode"] == "squash" and config["crop_pct"] == 1
        assert (found.preprocess is not None) == (stretched or config["crop_mode"] == "center"), name
        assert found.preprocess is None or same(found, transform), name
