"""Preprocessing: the recorded way from an encoded image to the numbers that the model was trained on.

Training, the gate and the torch-free server all call this one implementation, so a picture gives the same tensor
bit for bit wherever it is read. Pillow is imported on use.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from penstock.errors import PenstockError, require
from penstock.fields import NoTruths
from penstock.signature import Signature, Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats with bounded, well-fuzzed decoders; everything else Pillow could open is refused.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 25_000_000
MAX_SIDE = 10_000
# Scaled decoding leaves so many times the size that a picture is resized to: with less, its filter shows in the result.
SPARE = 2
Resample = Literal["nearest", "bilinear", "bicubic", "box", "lanczos"]


class BadImage(PenstockError):
    """Bytes that are not an image that may be decoded here."""


class TooManyPixels(BadImage):
    """An image of more pixels than its reader allows."""


class ImagePreprocess(NoTruths):
    """An image becomes float32 `[channels, height, width]`: (resized pixels × scale − mean) ÷ std, per channel.

    With `dtype` uint8 the model's own graph computes that, and is given the resized pixels as they are decoded:
    uint8 `[height, width, channels]`, of one channel for mode L.

    Without `resize_shorter` the picture is stretched to height x width. With it, its shorter side is resized to that
    many pixels, the longer in proportion, and height x width is cut from the centre, filled with black where the
    picture is smaller: torchvision's `Resize(resize_shorter)` and `CenterCrop((height, width))`, to the pixel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: Literal["image"] = "image"
    input: str
    mode: Literal["L", "RGB"]
    height: int = Field(ge=1, le=MAX_SIDE)
    width: int = Field(ge=1, le=MAX_SIDE)
    resize_shorter: int | None = Field(default=None, ge=1, le=MAX_SIDE)
    resample: Resample = "bilinear"
    scale: float = Field(default=1 / 255, gt=0)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["float32", "uint8"] = "float32"

    @model_validator(mode="after")
    def _one_figure_per_channel(self) -> ImagePreprocess:
        channels = self.channels
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(f"mean and std must have {channels} values for mode {self.mode}")
        if any(value == 0 for value in self.std):
            raise ValueError("std must not hold a zero")
        if self.height * self.width > MAX_PIXELS:
            raise ValueError(
                f"height x width is {self.height:,} x {self.width:,}; a picture has {MAX_PIXELS:,} pixels at most"
            )
        return self

    @property
    def channels(self) -> int:
        return 1 if self.mode == "L" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one picture as the model takes it."""
        if self.dtype == "uint8":
            return self.height, self.width, self.channels
        return self.channels, self.height, self.width

    def tensors(self) -> tuple[Tensor, ...]:
        """The input that pictures become."""
        return (Tensor(name=self.input, dtype=self.dtype, shape=("batch", *self.shape)),)

    def contract(self, signature: Signature) -> Signature:
        """A signature with its input for pictures of this dtype and shape, and of any values."""
        inputs = tuple(
            Tensor(name=tensor.name, dtype=self.dtype, shape=(*tensor.shape[:1], *self.shape))
            if tensor.name == self.input
            else tensor
            for tensor in signature.inputs
        )
        ranges = {name: held for name, held in signature.ranges.items() if name != self.input}
        return signature.model_copy(update={"inputs": inputs, "ranges": ranges})

    def rows(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        """uint8 `[n, height, width, channels]` (mode L without the last) -> what the model takes, `[n, *shape]`."""
        if self.dtype == "float32":
            return self.normalize(pixels)
        return np.ascontiguousarray(pixels).reshape(len(pixels), *self.shape)

    def normalize(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8, as `rows` takes it -> float32 `[n, channels, height, width]`."""
        channels_last = pixels.reshape(len(pixels), self.height, self.width, self.channels)
        planes = np.ascontiguousarray(np.moveaxis(channels_last, -1, 1)).astype(np.float32)
        # Divided, as torchvision does it: multiplied by 1/255, half of the 256 levels end in another last bit.
        planes /= np.float32(1 / self.scale)
        planes -= np.asarray(self.mean, np.float32).reshape(1, -1, 1, 1)
        planes /= np.asarray(self.std, np.float32).reshape(1, -1, 1, 1)
        return planes

    def read(self, data: bytes, max_pixels: int = MAX_PIXELS, scaled: bool = False) -> NDArray[Any]:
        """An encoded image -> what the model takes, `[1, *shape]`: what `apply` makes of what `decode_image` gives.

        With `scaled` a JPEG is decoded at 1/2, 1/4 or 1/8 where that leaves SPARE times the size that it is resized
        to. That is faster, and not training's numbers to the bit; "nearest" averages nothing, and is not scaled.

        Raises:
            BadImage: as both of them.
        """
        with _decoding(data, max_pixels) as image:
            size, box = self._resized(*image.size), None
            if scaled and self.resample != "nearest":
                drafted = image.draft(None, (SPARE * size[0], SPARE * size[1]))
                box = drafted and drafted[1]
        return self._numbers(image, size, box)

    def pixels(self, numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The pixels that `normalize` makes these numbers of, bit for bit: uint8 `[n, height, width, channels]`.

        Raises:
            ValueError: there are none.
        """
        mean, std = (np.asarray(values, np.float32).reshape(1, -1, 1, 1) for values in (self.mean, self.std))
        with np.errstate(invalid="ignore"):
            guessed = np.rint((numbers * std + mean) / np.float32(self.scale)).clip(0, 255).astype(np.uint8)
        found = np.ascontiguousarray(np.moveaxis(guessed, 1, -1))
        if self.normalize(found).tobytes() != np.ascontiguousarray(numbers, np.float32).tobytes():
            raise ValueError("they are not what the preprocessing makes of pixels")
        return found

    def apply(self, image: Image) -> NDArray[Any]:
        """One decoded image -> what the model takes, `[1, *shape]`.

        Raises:
            BadImage: a picture so long and thin that resizing its shorter side would give more than MAX_PIXELS.
        """
        return self._numbers(image, self._resized(*image.size), None)

    def _numbers(
        self, image: Image, size: tuple[int, int], box: tuple[float, float, float, float] | None
    ) -> NDArray[Any]:
        """The numbers of an image of which `box` is resized to `size`; None is all of it."""
        from PIL import Image as Pillow

        if image.mode.startswith("I"):  # 16-bit grey: its high byte; Pillow's own conversion clips at 255
            image = Pillow.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
        if image.mode != self.mode:  # to the same mode it would be copied
            image = image.convert(self.mode)
        if image.size != size:
            image = image.resize(size, Pillow.Resampling[self.resample.upper()], box)
        if size != (self.width, self.height):
            left, top = _centred(size[0], self.width), _centred(size[1], self.height)
            image = image.crop((left, top, left + self.width, top + self.height))
        return self.rows(np.asarray(image, dtype=np.uint8)[None])

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """The size before cropping, of a picture of `width` x `height`."""
        if self.resize_shorter is None:
            return self.width, self.height
        shorter = self.resize_shorter
        # Multiplied before divided, and cut off, as torchvision does: another order is a pixel off for some sizes.
        longer = int(shorter * max(width, height) / min(width, height))
        if shorter * longer > MAX_PIXELS:
            raise BadImage(
                f"the image of {width}x{height} pixels would have {shorter * longer} with its shorter side resized to "
                f"{shorter}; the limit is {MAX_PIXELS} pixels"
            )
        return (shorter, longer) if width <= height else (longer, shorter)


def _centred(size: int, crop: int) -> int:
    """Where a crop begins; below zero where it is larger than the picture, which Pillow fills with black."""
    return round((size - crop) / 2) if size >= crop else -((crop - size) // 2)


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Image:
    """Decode PNG, JPEG, WebP, BMP or GIF bytes (first frame), refusing a picture of over `max_pixels` undecoded.

    Raises:
        BadImage: not such an image, a damaged one, or too large a one.
    """
    with _decoding(data, max_pixels) as image:
        return image


@contextmanager
def _decoding(data: bytes, max_pixels: int) -> Iterator[Image]:
    """An image of which the head is read; its pixels are decoded when the block ends.

    Raises:
        BadImage: as `decode_image`.
    """
    require("PIL", "serve", "decoding an image")
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    if not data:
        raise BadImage("the image is empty (0 bytes); send a PNG, JPEG, WebP, BMP or GIF file")
    try:
        image = Pillow.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels:
            raise TooManyPixels(
                f"the image has {width}x{height} = {width * height} pixels; the limit is {max_pixels} pixels"
            )
        yield image
        image.load()
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(
            f"the {len(data)} bytes sent are not an image; send a PNG, JPEG, WebP, BMP or GIF file"
        ) from None
    except Pillow.DecompressionBombError:
        raise TooManyPixels(f"the image decodes to more pixels than the limit of {max_pixels} pixels") from None
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more
        raise BadImage(f"the image is damaged and cannot be decoded: {error}") from None
