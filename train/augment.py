"""Augmentation: random changes to training images; what is cheap on whole batches, what is not on each picture.

Shifts, mirroring and mixup change batches in the loop, on the device where they are. Crops and policies change pictures
before they are normalised, in the processes that load them: on a batch, torchvision draws them once for all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from penstock.data.samples import Samples
from penstock.errors import PenstockError, require
from penstock.preprocess import BadImage, ImagePreprocess, decode_image
from penstock.train.recipe import Augment

if TYPE_CHECKING:
    from PIL.Image import Image


class Augmenter:
    """What `augment` asks of batches, drawn by torch's generator on the CPU.

    Args:
        augment: what a recipe says of it.
        classes: how many there are, where targets are class numbers.
    """

    def __init__(self, augment: Augment, classes: int | None = None) -> None:
        self._shift, self._flip, self._mixup, self._classes = augment.shift, augment.flip, augment.mixup, classes

    def pixels(self, images: Tensor) -> Tensor:
        """Images of any dtype, `[n, height, width, channels]`, shifted and mirrored."""
        return moved(images, self._shift, self._flip)

    def mixed(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Floating-point images, of any shape, and targets, mixed by twos if so asked."""
        return mixed(images, targets, self._mixup, self._classes) if self._mixup else (images, targets)


def moved(images: Tensor, most: int, flip: bool = False) -> Tensor:
    """Each image moved by its own whole number of pixels, the border repeated, and then mirrored as a coin falls.

    Args:
        images: `[n, height, width, channels]`.
        most: the farthest, up, down, left and right.
        flip: whether half of them are mirrored, left to right.
    """
    if not most and not flip:
        return images
    n, height, width, channels = images.shape
    # Drawn on the CPU, whose generator a seed sets for every device alike; all else is where the images are.
    offsets = (
        torch.randint(0, 2 * most + 1, (2, n, 1, 1)) - most if most else torch.zeros(2, n, 1, 1, dtype=torch.int64)
    )
    coins = (torch.rand(n, 1, 1) < 0.5) if flip else torch.zeros(n, 1, 1, dtype=torch.bool)
    (top, left), coins = (drawn.to(images.device, non_blocking=True) for drawn in (offsets, coins))
    columns = torch.arange(width, device=images.device).expand(n, 1, width)
    columns = torch.where(coins, width - 1 - columns, columns)
    rows = torch.arange(height, device=images.device).view(1, height, 1)
    y, x = (top + rows).clamp(0, height - 1), (left + columns).clamp(0, width - 1)
    # One pixel after the other by its number: a third of the time that indexing by image, row and column takes.
    numbers = (torch.arange(n, device=images.device).view(n, 1, 1) * height + y) * width + x
    return images.reshape(-1, channels).index_select(0, numbers.flatten()).view(images.shape)


def mixed(images: Tensor, targets: Tensor, alpha: float, classes: int | None) -> tuple[Tensor, Tensor]:
    """Images and targets of a batch, each with a share of another's, after Zhang et al., "mixup" (2018).

    The share is drawn once for the batch, from Beta(alpha, alpha). Class numbers int64 `[n]` become probabilities
    `[n, classes]`, whose cross entropy is the mean of the two that are mixed; zeros and ones, and other numbers, keep
    their shape, for binary cross entropy and for distances.
    """
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    others = torch.randperm(len(images)).to(images.device, non_blocking=True)
    if targets.ndim == 1 and not targets.is_floating_point():
        if classes is None:
            raise ValueError("mixup of class numbers needs the number of classes")
        targets = functional.one_hot(targets, classes)
    if not targets.is_floating_point():
        targets = targets.to(images.dtype)
    return torch.lerp(images[others], images, share), torch.lerp(targets[others], targets, share)


def by_picture(augment: Augment) -> bool:
    """Whether pictures are changed one by one, by `Changed`, as they are read."""
    return augment.crop or augment.policy != "none"


class Changed(Dataset[tuple[dict[str, Tensor], Tensor]]):
    """A training part whose pictures are cropped and changed by a policy as they are read, each epoch anew.

    It is indexed by lists of numbers, and answers whole batches: pixels uint8 `[n, height, width, channels]` under the
    preprocessing's input, and labels. What happens to a picture hangs on the seed, the epoch and its number alone: not
    on the order, the batch, the number of workers or of ranks.

    Args:
        samples: pictures, or bytes of encoded ones.
        preprocess: what the pixels are resized by; with `crop`, RandomResizedCrop takes the place of that.
        augment: what a recipe says of it.
        seed: the recipe's.
    """

    def __init__(self, samples: Samples, preprocess: ImagePreprocess, augment: Augment, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._preprocess = preprocess.model_copy(update={"dtype": "uint8"})
        self._crop = _crop(preprocess) if augment.crop else None
        self._policy = _policy(augment)
        # In memory that loaders' processes share: they live on from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the pictures are read for; to be called before a loader's iteration begins."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        pixels = torch.from_numpy(np.stack([self._read(int(index)) for index in indices]))
        return {self._preprocess.input: pixels}, torch.from_numpy(self._samples.labels[indices])

    def _read(self, index: int) -> NDArray[np.uint8]:
        try:
            item = self._samples.items[index]
            image = self._resized(decode_image(item) if isinstance(item, bytes) else _image(item))
            with drawing(self._seed, int(self._epoch), index):
                image = self._crop(image) if self._crop else image
                changed = np.array(self._policy(image) if self._policy else image, np.uint8)
        except BadImage as error:
            raise PenstockError(f"{self._samples.place(index)}: {error}") from None
        return changed.reshape(self._preprocess.shape)

    def _resized(self, image: Image) -> Image:
        """A picture in the preprocessing's mode and, unless a crop is to resize it, its size."""
        how = self._preprocess
        if self._crop:
            how = how.model_copy(update={"height": image.height, "width": image.width, "resize_shorter": None})
        return _image(how.apply(image)[0])


@contextmanager
def drawing(*numbers: int) -> Iterator[None]:
    """Let what torch draws on the CPU hang on `numbers` alone; its generator goes on afterwards as if nothing was."""
    generator = torch.default_generator
    before = generator.get_state()
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    generator.manual_seed(int.from_bytes(digest, "little"))
    try:
        yield
    finally:
        generator.set_state(before)


def _image(pixels: NDArray[np.uint8]) -> Image:
    from PIL import Image as Pillow

    return Pillow.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def _crop(preprocess: ImagePreprocess) -> Any:
    require("torchvision", "train", "augment.crop")
    from torchvision.transforms import InterpolationMode, v2

    size = preprocess.height, preprocess.width
    return v2.RandomResizedCrop(size, interpolation=InterpolationMode(preprocess.resample))


def _policy(augment: Augment) -> Any:
    """TrivialAugment (Müller & Hutter 2021) or RandAugment (Cubuk et al. 2020), as torchvision has them, or None."""
    if augment.policy == "none":
        return None
    require("torchvision", "train", f"augment.policy = {augment.policy!r}")
    from torchvision.transforms import v2

    return v2.TrivialAugmentWide() if augment.policy == "trivial" else v2.RandAugment()
