"""Preprocessing: an uploaded picture gives the tensor that training saw, and nothing else is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from penstock import preprocess as preprocessing
from penstock.preprocess import MAX_PIXELS, BadImage, ImagePreprocess, decode_image
from penstock.signature import Dim, Range, Signature, Tensor

GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))
COLOUR = ImagePreprocess(
    input="image", mode="RGB", height=5, width=7, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


def encode(pixels: NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@given(hnp.arrays(np.uint8, (8, 8)))
def test_an_uploaded_grey_png_gives_the_in_memory_tensor_bit_for_bit(pixels: NDArray[np.uint8]) -> None:
    uploaded = GREY.apply(decode_image(encode(pixels)))
    assert uploaded.tobytes() == GREY.normalize(pixels[None]).tobytes()


@given(hnp.arrays(np.uint8, (5, 7, 3)))
def test_an_uploaded_colour_png_gives_the_in_memory_tensor_bit_for_bit(pixels: NDArray[np.uint8]) -> None:
    uploaded = COLOUR.apply(decode_image(encode(pixels)))
    assert uploaded.tobytes() == COLOUR.normalize(pixels[None]).tobytes()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "WEBP"])
def test_every_lossless_format_gives_the_same_tensor(kind: str) -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    options = {"lossless": True} if kind == "WEBP" else {}
    uploaded = GREY.apply(decode_image(encode(pixels, kind, **options)))
    assert uploaded.tobytes() == GREY.normalize(pixels[None]).tobytes()


@given(
    pixels=hnp.arrays(np.uint8, (2, 3, 4, 3)),
    scale=st.floats(1e-3, 1.0),
    mean=st.tuples(*[st.floats(-2, 2)] * 3),
    std=st.tuples(*[st.floats(0.05, 4)] * 3),
)
def test_normalize_is_pixels_by_scale_less_mean_over_std(
    pixels: NDArray[np.uint8], scale: float, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    preprocess = ImagePreprocess(input="x", mode="RGB", height=3, width=4, scale=scale, mean=mean, std=std)
    found = preprocess.normalize(pixels)
    assert (found.dtype, found.shape) == (np.float32, (2, 3, 3, 4))
    single = np.finfo(np.float32)
    for channel in range(3):
        scaled = pixels[:, :, :, channel].astype(np.float64) * scale
        exact = (scaled - mean[channel]) / std[channel]
        # Seven roundings to float32 (constants, operands, results), each of half an eps; tiny ones become zero.
        bound = (4 * single.eps * (scaled + abs(mean[channel])) + single.tiny) / std[channel]
        assert (np.abs(found[:, channel] - exact) <= bound).all()


def test_a_grey_tensor_has_one_channel_and_is_contiguous() -> None:
    found = GREY.normalize(np.zeros((3, 8, 8), np.uint8))
    assert found.shape == (3, 1, 8, 8)
    assert found.flags["C_CONTIGUOUS"]


def test_a_picture_of_another_size_is_resized_to_the_recorded_one() -> None:
    blocks = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    larger = np.kron(blocks, np.ones((4, 4), np.uint8))  # a box filter takes this exactly back
    box = GREY.model_copy(update={"resample": "box"})
    assert box.apply(decode_image(encode(larger))).tobytes() == box.normalize(blocks[None]).tobytes()


def test_width_and_height_are_not_mixed_up() -> None:
    assert COLOUR.apply(decode_image(encode(np.zeros((30, 20, 3), np.uint8)))).shape == (1, 3, 5, 7)


# Pillow's mode -> its black and its white.
ENDS: dict[str, tuple[Any, Any]] = {
    "1": (0, 1),
    "L": (0, 255),
    "LA": ((0, 255), (255, 255)),
    "RGB": ((0, 0, 0), (255, 255, 255)),
    "RGBA": ((0, 0, 0, 255), (255, 255, 255, 255)),
    "CMYK": ((255, 255, 255, 255), (0, 0, 0, 0)),
    "I;16": (0, 65535),
}


@pytest.mark.parametrize("mode", sorted(ENDS))
def test_a_picture_of_any_mode_keeps_black_black_and_white_white(mode: str) -> None:
    for colour, expected in zip(ENDS[mode], (0, 255), strict=True):
        buffer = io.BytesIO()
        # PNG holds all of these but CMYK, which only JPEG does.
        Image.new(mode, (8, 8), colour).save(buffer, "JPEG" if mode == "CMYK" else "PNG")
        found = GREY.apply(decode_image(buffer.getvalue()))
        assert np.array_equal(found, GREY.normalize(np.full((1, 8, 8), expected, np.uint8)))


def test_a_picture_with_a_palette_gives_its_colours() -> None:
    levels = np.array([[0, 17, 255, 140]], np.uint8).repeat(8, axis=0).repeat(2, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(levels).convert("P").save(buffer, "PNG")
    assert np.array_equal(GREY.apply(decode_image(buffer.getvalue())), GREY.normalize(levels[None]))


def test_sixteen_bit_grey_is_scaled_not_cut_off() -> None:
    high, low = np.random.default_rng(0).integers(0, 256, (2, 8, 8), np.uint16)
    for deep, expected in ((np.full((8, 8), 0x8000, np.uint16), np.full((8, 8), 0x80)), (high << 8 | low, high)):
        buffer = io.BytesIO()
        Image.fromarray(deep).save(buffer, "PNG")
        found = GREY.apply(decode_image(buffer.getvalue()))
        assert np.array_equal(found, GREY.normalize(expected.astype(np.uint8)[None]))


def test_an_animation_gives_its_first_frame() -> None:
    buffer = io.BytesIO()
    frames = [Image.new("L", (8, 8), level) for level in (40, 200)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(decode_image(buffer.getvalue()).convert("L"))[0, 0] == 40


def test_no_bytes_are_refused() -> None:
    with pytest.raises(BadImage, match="empty"):
        decode_image(b"")


def test_bytes_that_are_no_image_are_refused_with_their_number() -> None:
    with pytest.raises(BadImage, match=r"12 bytes.*not an image.*PNG, JPEG"):
        decode_image(b"hello, world")


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "TGA", "PCX"])
def test_a_format_outside_the_list_is_refused(kind: str) -> None:
    with pytest.raises(BadImage, match="not an image"):
        decode_image(encode(np.zeros((16, 16), np.uint8), kind))


def test_a_picture_over_the_pixel_limit_is_refused_before_decoding() -> None:
    with pytest.raises(BadImage) as caught:
        decode_image(png_header(5001, 5000))
    assert "5001x5000 = 25005000 pixels" in str(caught.value)
    assert str(MAX_PIXELS) in str(caught.value)


def test_a_picture_of_billions_of_pixels_is_refused_as_too_large() -> None:
    with pytest.raises(BadImage, match=str(MAX_PIXELS)):
        decode_image(png_header(60000, 60000))


def test_the_pixel_limit_itself_is_allowed() -> None:
    data = encode(np.zeros((8, 8), np.uint8))
    assert decode_image(data, max_pixels=64).size == (8, 8)
    with pytest.raises(BadImage, match="8x8 = 64 pixels; the limit is 63"):
        decode_image(data, max_pixels=63)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_picture_cut_in_the_middle_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    data = encode(noise, kind)
    with pytest.raises(BadImage):
        decode_image(data[: len(data) // 2])


SEEDS = [encode(np.random.default_rng(0).integers(0, 256, (9, 9), np.uint8), kind) for kind in ("PNG", "GIF", "JPEG")]


@settings(max_examples=200)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_bytes_give_a_picture_or_a_bad_image_and_nothing_else(
    seed: bytes, edits: list[tuple[int, int]]
) -> None:
    damaged = bytearray(seed)
    for position, value in edits:
        damaged[position % len(damaged)] = value
    try:
        picture = decode_image(bytes(damaged))
    except BadImage:
        return
    assert GREY.apply(picture).shape == (1, 1, 8, 8)


@given(st.binary(max_size=64))
def test_any_bytes_give_a_picture_or_a_bad_image(data: bytes) -> None:
    try:
        decode_image(data)
    except BadImage:
        return


@pytest.mark.parametrize("field", ["mean", "std"])
def test_one_figure_for_each_channel_is_demanded(field: str) -> None:
    fields = {"input": "x", "mode": "RGB", "height": 4, "width": 4, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    with pytest.raises(ValidationError, match="mean and std must have 3 values for mode RGB"):
        ImagePreprocess(**{**fields, field: (0.5,)})


def test_a_std_of_zero_is_refused() -> None:
    with pytest.raises(ValidationError, match="std must not hold a zero"):
        ImagePreprocess(input="x", mode="L", height=4, width=4, mean=(0.0,), std=(0.0,))


@pytest.mark.parametrize("field", ["height", "width"])
@pytest.mark.parametrize("size", [0, -8])
def test_a_size_below_one_is_refused(field: str, size: int) -> None:
    fields = {"input": "x", "mode": "L", "height": 4, "width": 4, "mean": (0.0,), "std": (1.0,)}
    with pytest.raises(ValidationError, match=field):
        ImagePreprocess(**{**fields, field: size})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["scale", "mean", "std"])
def test_a_figure_that_is_no_number_is_refused_by_name(field: str, value: float) -> None:
    fields: dict[str, Any] = {"input": "image", "mode": "L", "height": 2, "width": 2, "mean": (0.5,), "std": (0.5,)}
    fields[field] = value if field == "scale" else (value,)
    with pytest.raises(ValidationError, match=field):
        ImagePreprocess.model_validate(fields)


IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# As torchvision.models' default weights have them: the shorter side, the crop and the interpolation.
PRESETS = {
    "resnet50": (232, 224, "bilinear"),
    "efficientnet_b0": (256, 224, "bicubic"),
    "vit_b_16": (256, 224, "bilinear"),
    "inception_v3": (342, 299, "bilinear"),
    "padded": (200, 224, "bilinear"),
}
# Width and height: landscape, portrait, odd, at the limits of the crop, small, thin.
SIZES = [(640, 480), (480, 640), (501, 333), (225, 232), (224, 224), (299, 257), (97, 61), (118, 29), (1, 9), (1, 1)]


def picture(mode: str, width: int, height: int) -> Image.Image:
    """Noise of any mode; with RGBA, in the alpha channel too."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,), "CMYK": (4,)}.get(mode, (3,))
    noise = np.random.default_rng(width * height).integers(0, 256, (height, width, *channels), np.uint8)
    return Image.fromarray(noise, mode if mode in ("LA", "CMYK") else None).convert(mode)


def square(shorter: int, side: int, resample: Any) -> ImagePreprocess:
    sizes: Any = {"height": side, "width": side, "resize_shorter": shorter}
    return ImagePreprocess(input="image", mode="RGB", resample=resample, **sizes, **IMAGENET)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_a_picture_gives_the_numbers_of_torchvisions_preset_bit_for_bit(preset: str, size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    from torchvision.transforms._presets import ImageClassification

    shorter, side, resample = PRESETS[preset]
    if preset != "padded":
        weights = pytest.importorskip("torchvision.models").get_model_weights(preset).DEFAULT
        theirs = weights.transforms()
        assert (theirs.resize_size, theirs.crop_size) == ([shorter], [side])
    else:
        interpolation = transforms.InterpolationMode(resample)
        theirs = ImageClassification(crop_size=side, resize_size=shorter, interpolation=interpolation)
    shown = picture("RGB", *size)
    expected = theirs(shown)[None].numpy()
    found = square(shorter, side, resample).apply(shown)
    assert found.dtype == np.float32
    assert found.shape == (1, 3, side, side)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_a_picture_of_any_mode_is_made_rgb_first_as_torchvision_is_given_it(mode: str) -> None:
    models = pytest.importorskip("torchvision.models")
    shown = picture(mode, 301, 260)
    theirs = models.get_model_weights("resnet50").DEFAULT.transforms()
    assert np.array_equal(square(232, 224, "bilinear").apply(shown), theirs(shown.convert("RGB"))[None].numpy())


def test_an_uploaded_jpeg_gives_the_numbers_of_torchvisions_preset() -> None:
    models = pytest.importorskip("torchvision.models")
    data = encode(np.asarray(picture("RGB", 401, 277)), "JPEG", quality=90)
    theirs = models.get_model_weights("resnet50").DEFAULT.transforms()
    expected = theirs(Image.open(io.BytesIO(data)).convert("RGB"))[None].numpy()
    assert np.array_equal(square(232, 224, "bilinear").apply(decode_image(data)), expected)


@settings(max_examples=300, deadline=None)
@given(
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    shorter=st.integers(1, 40),
    crop=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    resample=st.sampled_from(["nearest", "bilinear", "bicubic", "box", "lanczos"]),
)
def test_resizing_and_cropping_are_torchvisions_for_any_sizes(
    size: tuple[int, int], shorter: int, crop: tuple[int, int], resample: Any
) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    interpolation = transforms.InterpolationMode(resample)
    theirs = transforms.Compose(
        [
            transforms.Resize(shorter, interpolation=interpolation),
            transforms.CenterCrop(crop),
            transforms.ToTensor(),
            transforms.Normalize(**IMAGENET),
        ]
    )
    sizes: Any = {"height": crop[0], "width": crop[1], "resize_shorter": shorter}
    ours = ImagePreprocess(input="image", mode="RGB", resample=resample, **sizes, **IMAGENET)
    shown = picture("RGB", *size)
    assert np.array_equal(ours.apply(shown), theirs(shown)[None].numpy())


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "box", "lanczos"])
def test_without_a_shorter_side_the_whole_picture_is_stretched_as_torchvision_does(resample: Any) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    theirs = transforms.Compose(
        [
            transforms.Resize((30, 50), interpolation=transforms.InterpolationMode(resample)),
            transforms.ToTensor(),
            transforms.Normalize(**IMAGENET),
        ]
    )
    ours = ImagePreprocess(input="image", mode="RGB", height=30, width=50, resample=resample, **IMAGENET)
    shown = picture("RGB", 71, 33)
    assert np.array_equal(ours.apply(shown), theirs(shown)[None].numpy())


@pytest.mark.parametrize(
    ("name", "shorter", "side", "resample"),
    [
        ("resnet18.tv_in1k", 256, 224, "bilinear"),  # crop_pct 0.875
        ("resnet18.a1_in1k", 235, 224, "bicubic"),  # crop_pct 0.95
        ("cait_xxs24_224.fb_dist_in1k", 224, 224, "bicubic"),  # crop_pct 1.0
        ("eva_large_patch14_336.in22k_ft_in22k_in1k", None, 336, "bicubic"),  # crop_mode squash, crop_pct 1.0
    ],
)
def test_a_picture_gives_the_numbers_of_timms_transform_bit_for_bit(
    name: str, shorter: int, side: int, resample: str
) -> None:
    timm = pytest.importorskip("timm")
    config = timm.data.resolve_data_config({}, pretrained_cfg=timm.models.get_pretrained_cfg(name).to_dict())
    theirs = timm.data.create_transform(**config, is_training=False)
    ours = square(shorter, side, resample).model_copy(update={"mean": config["mean"], "std": config["std"]})
    for size in SIZES:
        shown = picture("RGB", *size)
        assert np.array_equal(ours.apply(shown), theirs(shown)[None].numpy())


def test_a_picture_smaller_than_the_crop_stands_in_the_middle_of_black() -> None:
    plain: Any = {"mean": (0.0,), "std": (1.0,), "scale": 1.0}
    ours = ImagePreprocess(input="x", mode="L", height=4, width=5, resize_shorter=2, **plain)
    found = ours.apply(Image.fromarray(np.full((2, 2), 9, np.uint8)))
    assert found[0, 0].tolist() == [[0, 0, 0, 0, 0], [0, 9, 9, 0, 0], [0, 9, 9, 0, 0], [0, 0, 0, 0, 0]]


def test_a_thin_picture_that_would_grow_over_the_pixel_limit_is_refused_before_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadImage) as caught:
        square(224, 224, "bilinear").apply(Image.new("L", (60000, 1)))
    assert "60000x1 pixels would have 3010560000" in str(caught.value)
    assert f"the limit is {MAX_PIXELS} pixels" in str(caught.value)
    monkeypatch.setattr(preprocessing, "MAX_PIXELS", 64)
    small = ImagePreprocess(input="x", mode="L", height=4, width=4, resize_shorter=4, mean=(0.0,), std=(1.0,))
    assert small.apply(Image.new("L", (1, 4))).shape == (1, 1, 4, 4)  # 4 x 16
    with pytest.raises(BadImage, match=r"1x5 pixels would have 80 .* resized to 4; the limit is 64"):
        small.apply(Image.new("L", (1, 5)))


@pytest.mark.parametrize("value", [0, -1])
def test_a_shorter_side_below_one_is_refused(value: int) -> None:
    with pytest.raises(ValidationError, match="resize_shorter"):
        square(value, 8, "bilinear")


@pytest.mark.parametrize("value", [0.0, -1 / 255])
def test_a_scale_that_is_not_above_zero_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="scale"):
        ImagePreprocess(input="x", mode="L", height=2, width=2, mean=(0.0,), std=(1.0,), scale=value)


def test_preprocessing_recorded_before_there_was_a_shorter_side_reads_as_it_did() -> None:
    fields = COLOUR.model_dump(mode="json")
    del fields["resize_shorter"]
    assert ImagePreprocess.model_validate(fields) == COLOUR


# --- From bytes, bit for bit what plain Pillow and the recorded arithmetic give; and scaled, within a bound -----------


def plainly(preprocess: ImagePreprocess, data: bytes) -> NDArray[np.float32]:
    """The numbers of a file by Pillow's calls and numpy's, one after the other."""
    shown = Image.open(io.BytesIO(data))
    if shown.mode.startswith("I"):
        shown = Image.fromarray((np.asarray(shown) >> 8).astype(np.uint8))
    shown = shown.convert(preprocess.mode)
    size = preprocess._resized(*shown.size)
    shown = shown.resize(size, Image.Resampling[preprocess.resample.upper()])
    left, top = (round((a - b) / 2) for a, b in zip(size, (preprocess.width, preprocess.height), strict=True))
    pixels = np.asarray(shown.crop((left, top, left + preprocess.width, top + preprocess.height)))
    planes = np.atleast_3d(pixels).transpose(2, 0, 1)[None].astype(np.float32)
    mean, std = (np.array(held, np.float32)[:, None, None] for held in (preprocess.mean, preprocess.std))
    numbers: NDArray[np.float32] = (planes / np.float32(1 / preprocess.scale) - mean) / std
    return numbers


def smooth(mode: str, width: int, height: int) -> Image.Image:
    """A picture with the gradients and edges that photographs have, of any mode."""
    return (
        picture("RGB", 1 + width // 12, 1 + height // 12)
        .resize((width, height), Image.Resampling.BICUBIC)
        .convert(mode)
    )


def saved(shown: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    shown.save(buffer, kind, **options)
    return buffer.getvalue()


def turned() -> Image.Exif:
    """EXIF that asks for a quarter turn."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


FILES: dict[str, Callable[[int, int], bytes]] = {
    "4:4:4": lambda *size: saved(smooth("RGB", *size), subsampling=0),
    "4:2:2": lambda *size: saved(smooth("RGB", *size), subsampling=1),
    "4:2:0": lambda *size: saved(smooth("RGB", *size), subsampling=2, quality=70),
    "grey": lambda *size: saved(smooth("L", *size)),
    "CMYK": lambda *size: saved(smooth("CMYK", *size)),
    "progressive": lambda *size: saved(smooth("RGB", *size), progressive=True),
    "restart markers": lambda *size: saved(smooth("RGB", *size), restart_marker_rows=1),
    "EXIF orientation": lambda *size: saved(smooth("RGB", *size), exif=turned()),
    "PNG": lambda *size: saved(smooth("RGB", *size), "PNG"),
    "PNG with alpha": lambda *size: saved(picture("RGBA", *size), "PNG"),
    "PNG of grey and alpha": lambda *size: saved(picture("LA", *size), "PNG"),
    "PNG of a palette": lambda *size: saved(smooth("P", *size), "PNG"),
    "PNG of a palette with a transparent colour": lambda *size: saved(smooth("P", *size), "PNG", transparency=3),
    "PNG with a transparent colour": lambda *size: saved(smooth("RGB", *size), "PNG", transparency=(0, 0, 0)),
    "PNG of 16 bits": lambda *size: saved(Image.fromarray(np.asarray(smooth("L", *size), np.uint16) * 257), "PNG"),
    "PNG of 1 bit": lambda *size: saved(smooth("1", *size), "PNG"),
    "WebP": lambda *size: saved(smooth("RGB", *size), "WEBP"),
}
READERS = [square(20, 16, "bilinear"), square(16, 16, "bicubic"), COLOUR, GREY]
JPEGS = [name for name, data in FILES.items() if data(8, 8).startswith(b"\xff\xd8")]


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 150), height=st.integers(1, 150), reader=st.sampled_from(READERS))
def test_a_file_gives_the_numbers_of_plain_pillow_bit_for_bit(
    name: str, width: int, height: int, reader: ImagePreprocess
) -> None:
    data = FILES[name](width, height)
    expected = plainly(reader, data).tobytes()
    assert reader.read(data).tobytes() == expected
    assert reader.apply(decode_image(data)).tobytes() == expected
    if name not in JPEGS:
        assert reader.read(data, scaled=True).tobytes() == expected


def test_a_picture_that_is_read_is_not_written_to() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    before = pixels.copy()
    GREY.normalize(pixels)
    assert np.array_equal(pixels, before)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_file_is_refused_for_its_own_size_whatever_it_would_be_decoded_at(scaled: bool) -> None:
    data = saved(smooth("RGB", 400, 300))
    assert COLOUR.read(data, 120_000, scaled).shape == (1, 3, 5, 7)
    with pytest.raises(BadImage, match="400x300 = 120000 pixels; the limit is 119999"):
        COLOUR.read(data, 119_999, scaled)
    with pytest.raises(BadImage, match=f"limit of {MAX_PIXELS} pixels"):
        COLOUR.read(png_header(60000, 60000), scaled=scaled)
    for wrong in (data[: len(data) // 2], b"", b"hello, world"):
        with pytest.raises(BadImage, match=r"damaged|empty|not an image"):
            COLOUR.read(wrong, scaled=scaled)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_thin_picture_is_refused_before_its_pixels_are_decoded(scaled: bool) -> None:
    with pytest.raises(BadImage, match="60000x1 pixels would have 3010560000"):
        square(224, 224, "bilinear").read(png_header(60000, 1), scaled=scaled)


def decoded_at(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes at which pictures are decoded from now on."""
    sizes: list[tuple[int, int]] = []
    numbers = ImagePreprocess._numbers

    def seen(self: ImagePreprocess, image: Image.Image, *how: Any) -> NDArray[np.float32]:
        sizes.append(image.size)
        return numbers(self, image, *how)

    monkeypatch.setattr(ImagePreprocess, "_numbers", seen)
    return sizes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((79, 79), (79, 79)),
        ((80, 80), (40, 40)),
        ((81, 83), (41, 42)),
        ((160, 300), (40, 75)),
        ((159, 300), (80, 150)),
        ((1000, 320), (125, 40)),
        ((1000, 900), (125, 113)),
    ],
)
def test_a_jpeg_is_decoded_at_a_scale_that_leaves_twice_what_it_is_resized_to(
    size: tuple[int, int], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = decoded_at(monkeypatch)
    reader = square(20, 16, "bilinear")
    reader.read(saved(smooth("RGB", *size)), scaled=True)
    reader.read(saved(smooth("RGB", *size)))
    reader.read(saved(smooth("RGB", *size), "PNG"), scaled=True)
    square(20, 16, "nearest").read(saved(smooth("RGB", *size)), scaled=True)
    assert sizes == [expected, size, size, size]


def slope(width: int, height: int) -> Image.Image:
    """Red grows from left to right, green from top to bottom: what is shifted or stretched shows everywhere."""
    across, down = np.linspace(0, 255, width), np.linspace(0, 255, height)
    red, green = np.broadcast_to(across, (height, width)), np.broadcast_to(down[:, None], (height, width))
    return Image.fromarray(np.stack([red, green, (red + green) / 2], axis=-1).round().astype(np.uint8))


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 400),
    height=st.integers(1, 400),
    reader=st.sampled_from(READERS),
    options=st.sampled_from([{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}]),
)
def test_scaled_decoding_keeps_every_pixel_where_it_was(
    width: int, height: int, reader: ImagePreprocess, options: dict[str, Any]
) -> None:
    data = saved(slope(width, height), quality=95, **options)
    std = np.array(reader.std, np.float32)[:, None, None]
    away = np.abs(reader.read(data, scaled=True) - reader.read(data)) * std / np.float32(reader.scale)
    assert away.max() <= 6  # without the box that draft gives, 15


@pytest.mark.parametrize("image", [GREY, COLOUR])
def test_with_uint8_a_picture_stays_the_pixels_that_the_numbers_are_made_of(image: ImagePreprocess) -> None:
    kept = image.model_copy(update={"dtype": "uint8"})
    drawn = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    pixels = kept.apply(drawn)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (1, image.height, image.width, image.channels))
    assert kept.normalize(pixels).tobytes() == image.apply(drawn).tobytes()


@given(st.floats(-3, 3), st.floats(0.01, 3), st.sampled_from([1 / 255, 1.0, 1 / 256]))
def test_every_level_is_found_again_from_its_number(mean: float, std: float, scale: float) -> None:
    image = ImagePreprocess(input="x", mode="L", height=16, width=16, mean=(mean,), std=(std,), scale=scale)
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    assert np.array_equal(image.pixels(image.normalize(levels)), levels)


@pytest.mark.parametrize("number", [0.1234, np.nan, np.inf, -100.0, 100.0])
def test_numbers_that_come_of_no_pixels_are_refused(number: float) -> None:
    numbers = GREY.normalize(np.zeros((2, 8, 8), np.uint8))
    numbers[1, 0, 3, 3] = number
    with pytest.raises(ValueError, match="not what the preprocessing makes of pixels"):
        GREY.pixels(numbers)


def test_a_contract_has_its_pictures_as_uint8_and_all_else_as_it_was() -> None:
    signature = Signature(
        inputs=(Tensor.parse("ids:int64[n]"), Tensor.parse("image:float32[n,3,5,7]")),
        outputs=(Tensor.parse("out[n]"),),
        dims={"n": Dim(opt=2, max=4)},
        ranges={"image": Range(low=0, high=1), "ids": Range(low=0, high=9)},
    )
    found = COLOUR.model_copy(update={"dtype": "uint8"}).contract(signature)
    assert list(map(str, found.inputs)) == ["ids:int64[n]", "image:uint8[n,5,7,3]"]
    assert (found.outputs, found.dims) == (signature.outputs, signature.dims)
    assert found.ranges == {"ids": Range(low=0, high=9)}
