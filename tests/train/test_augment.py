"""Augmentation: what happens to pictures, that it is drawn by seed, epoch and sample, and what it leaves alone."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader

from penstock.data.samples import Samples
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.train import augment, losses
from penstock.train.augment import Augmenter, Changed
from penstock.train.recipe import Augment, Loss

GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))
COLOUR = ImagePreprocess(
    input="photo", mode="RGB", height=16, width=12, resize_shorter=16, mean=(0.5,) * 3, std=(0.2,) * 3
)


def test_a_shifted_image_is_moved_by_whole_pixels_its_border_repeated() -> None:
    torch.manual_seed(0)
    images = torch.randn(200, 4, 5, 2)
    shifted = augment.moved(images, 1)
    seen = set()
    for before, after in zip(images, shifted, strict=True):
        padded = np.pad(before.numpy(), ((1, 1), (1, 1), (0, 0)), mode="edge")
        candidates = {(y, x): padded[y : y + 4, x : x + 5] for y in range(3) for x in range(3)}
        found = [offset for offset, picture in candidates.items() if np.array_equal(picture, after.numpy())]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) == 9


@pytest.mark.parametrize("most", [1, 3])
def test_shifts_are_drawn_as_two_rows_of_offsets_of_the_padded_image(most: int) -> None:
    """So were they drawn in earlier runs, whose recipes are to change their pictures alike."""
    images = torch.randn(20, 1, 8, 8)
    torch.manual_seed(7)
    shifted = augment.moved(images.permute(0, 2, 3, 1), most).permute(0, 3, 1, 2)
    torch.manual_seed(7)
    top, left = torch.randint(0, 2 * most + 1, (2, 20, 1, 1)).reshape(2, 20).tolist()
    padded = functional.pad(images, (most,) * 4, mode="replicate")
    wanted = [padded[i, :, y : y + 8, x : x + 8] for i, (y, x) in enumerate(zip(top, left, strict=True))]
    assert torch.equal(shifted, torch.stack(wanted))


def test_a_flipped_image_is_its_mirror_image_or_itself() -> None:
    torch.manual_seed(0)
    images = torch.randn(400, 3, 4, 2)
    mirrored = 0
    for before, after in zip(images, augment.moved(images, 0, flip=True), strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(1))
        mirrored += torch.equal(after, before.flip(1))
    assert 160 < mirrored < 240  # a coin: 200 ± 4 deviations


def test_an_image_is_mirrored_after_it_is_shifted() -> None:
    images = torch.randn(50, 6, 5, 1)
    torch.manual_seed(3)
    both = augment.moved(images, 2, flip=True)
    torch.manual_seed(3)
    shifted = augment.moved(images, 2)
    coins = torch.rand(50, 1, 1, 1) < 0.5
    assert torch.equal(both, torch.where(coins, shifted.flip(2), shifted))


def test_pixels_are_changed_before_they_are_numbers_as_numbers_are_after() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8))
    torch.manual_seed(3)
    early = GREY.normalize(Augmenter(Augment(shift=2, flip=True)).pixels(pixels).numpy())
    torch.manual_seed(3)
    numbers = torch.from_numpy(GREY.normalize(pixels.numpy())).permute(0, 2, 3, 1)
    assert np.array_equal(augment.moved(numbers, 2, flip=True).permute(0, 3, 1, 2).numpy(), early)


def test_what_is_not_asked_for_draws_nothing_and_changes_nothing() -> None:
    changes = Augmenter(Augment())
    pixels, targets = torch.zeros(3, 4, 4, 1, dtype=torch.uint8), torch.arange(3)
    before = torch.get_rng_state()
    assert changes.pixels(pixels) is pixels
    images = torch.zeros(3, 1, 4, 4)
    assert changes.mixed(images, targets) == (images, targets)
    assert torch.equal(torch.get_rng_state(), before)


def test_mixup_mixes_images_and_targets_by_the_same_share_of_the_same_two() -> None:
    torch.manual_seed(0)
    n = 6
    images = torch.eye(n).view(n, 1, n, 1)  # which is in what is seen in each mixture
    mixed, targets = Augmenter(Augment(mixup=1.0), classes=n).mixed(images, torch.arange(n))
    assert torch.allclose(mixed.view(n, n), targets)
    assert torch.allclose(targets.sum(1), torch.ones(n))
    shares = targets.diagonal()
    alone = shares == 1  # whose partner is itself
    assert len(set(shares[~alone].tolist())) == 1
    assert 0 < float(shares[~alone][0]) < 1


def test_mixup_s_loss_is_the_mean_of_the_two_that_are_mixed() -> None:
    """Zhang et al. 2018: λ loss(f(x), y_a) + (1 − λ) loss(f(x), y_b), for cross entropy and for BCE."""
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    ones = torch.eye(5, 4)
    both = (("classification", torch.tensor([0, 1, 2, 3, 0])), ("multilabel", ones), ("multilabel", ones.long()))
    for task, labels in both:
        torch.manual_seed(1)
        share = float(torch.distributions.Beta(0.4, 0.4).sample())
        others = torch.randperm(5)
        torch.manual_seed(1)
        _, targets = augment.mixed(torch.zeros(5, 1, 2, 2), labels, 0.4, 4)
        loss = losses.build(Loss(), task)  # type: ignore[arg-type]
        wanted = share * loss(logits, labels) + (1 - share) * loss(logits, labels[others])
        assert loss(logits, targets) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 50.0])
def test_the_shares_are_of_the_beta_distribution(alpha: float) -> None:
    """Its variance is 1 / (4 (2 α + 1)); half of the draws mix each of two with itself, and leave it as it is."""
    torch.manual_seed(0)
    pair = torch.tensor([[0.0], [1.0]])
    drawn = torch.stack([augment.mixed(pair, pair, alpha, None)[1][1, 0] for _ in range(2000)])
    assert torch.isfinite(drawn).all()
    assert float((drawn - 0.5).square().mean()) == pytest.approx(0.5 * 0.25 + 0.5 / (4 * (2 * alpha + 1)), abs=0.015)


def test_mixup_of_class_numbers_needs_to_know_how_many_there_are() -> None:
    with pytest.raises(ValueError, match="needs the number of classes"):
        augment.mixed(torch.zeros(2, 1), torch.arange(2), 1.0, None)


@pytest.mark.parametrize(
    ("changes", "by"),
    [({}, False), ({"shift": 2, "flip": True, "mixup": 1}, False), ({"crop": True}, True), ({"policy": "rand"}, True)],
)
def test_crops_and_policies_are_of_single_pictures(changes: dict[str, Any], by: bool) -> None:
    assert augment.by_picture(Augment(**changes)) is by


@pytest.fixture
def scans_of_digits(scans: tuple[Any, Any]) -> Samples:
    items, labels = scans
    return Samples(items[:32], labels[:32])


def photo(seed: int, size: tuple[int, int] = (40, 30)) -> NDArray[np.uint8]:
    """A picture with edges and slopes, uint8 `[height, width, 3]`."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    return np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC))


def encoded(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


CROP = Augment(crop=True)
ALL = [CROP, Augment(policy="trivial"), Augment(policy="rand"), Augment(crop=True, policy="trivial")]


@pytest.mark.parametrize("changes", ALL)
def test_a_picture_s_changes_hang_on_seed_epoch_and_number_alone(scans_of_digits: Samples, changes: Augment) -> None:
    def read(seed: int, epoch: int, indices: list[int]) -> NDArray[Any]:
        part = Changed(scans_of_digits, GREY, changes, seed)
        part.set_epoch(epoch)
        torch.manual_seed(epoch + len(indices))  # what torch's own generator is at must not matter
        batch, labels = part[indices]
        assert labels.tolist() == scans_of_digits.labels[indices].tolist()
        assert batch["image"].dtype == torch.uint8
        return batch["image"].numpy()

    whole = read(0, 1, list(range(32)))
    assert np.array_equal(read(0, 1, [5, 3, 31]), whole[[5, 3, 31]])
    for other in (read(1, 1, list(range(32))), read(0, 2, list(range(32)))):
        assert not np.array_equal(other, whole)


def test_reading_a_changed_picture_leaves_torch_s_generator_as_it_was(scans_of_digits: Samples) -> None:
    part = Changed(scans_of_digits, GREY, ALL[3], 0)
    before = torch.get_rng_state()
    part[[0, 1]]
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_read_the_same_as_the_loop_itself_epoch_by_epoch(scans_of_digits: Samples) -> None:
    def read(workers: int) -> list[list[int]]:
        part = Changed(scans_of_digits, GREY, ALL[3], 0)
        order = [list(range(start, start + 8)) for start in range(0, 32, 8)]
        loader: Any = DataLoader(
            part, batch_size=None, sampler=order, num_workers=workers, persistent_workers=workers > 0
        )
        found = []
        for epoch in range(2):
            part.set_epoch(epoch)
            found.append([int(pixels["image"].long().sum()) for pixels, _ in loader])
        return found

    alone = read(0)
    assert alone[0] != alone[1]
    assert read(2) == alone


def test_without_changes_pictures_are_the_preprocessing_s() -> None:
    items = [encoded(photo(0)), photo(1, (33, 50))]
    part = Changed(Samples(items, np.array([0, 1])), COLOUR, Augment(), 0)
    batch, _ = part[[0, 1]]
    assert batch["photo"].shape == (2, 16, 12, 3)
    assert np.array_equal(COLOUR.normalize(batch["photo"].numpy())[:1], COLOUR.read(items[0]))
    assert np.array_equal(COLOUR.normalize(batch["photo"].numpy())[1:], COLOUR.apply(Image.fromarray(items[1])))


def test_a_crop_is_of_the_whole_picture_and_of_torchvision_s_making() -> None:
    """RandomResizedCrop of the picture as it was decoded: the preprocessing does not shrink or cut it first."""
    from torchvision.transforms import v2

    picture = photo(0, (60, 200))
    part = Changed(Samples([picture], np.array([0])), COLOUR, CROP, 4)
    part.set_epoch(2)
    crop = v2.RandomResizedCrop((16, 12), interpolation=v2.InterpolationMode.BILINEAR)
    with augment.drawing(4, 2, 0):
        wanted = crop(Image.fromarray(picture))
    assert np.array_equal(part[[0]][0]["photo"][0].numpy(), np.asarray(wanted))


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "box", "lanczos"])
def test_a_crop_resizes_as_the_preprocessing_does(resample: Any) -> None:
    flat = np.full((20, 20, 3), 77, np.uint8)
    how = COLOUR.model_copy(update={"resample": resample})
    batch, _ = Changed(Samples([flat], np.array([0])), how, CROP, 0)[[0]]
    assert batch["photo"].unique().tolist() == [77]


def test_grey_pictures_stay_grey_and_deep_ones_keep_their_high_byte() -> None:
    deep = io.BytesIO()
    Image.fromarray(np.full((9, 9), 0x4D00, np.uint16)).save(deep, "PNG")
    part = Changed(Samples([deep.getvalue(), photo(0)], np.array([0, 1])), GREY, CROP, 0)
    batch, _ = part[[0, 1]]
    assert batch["image"].shape == (2, 8, 8, 1)
    assert batch["image"][0].unique().tolist() == [0x4D]


def test_a_picture_that_cannot_be_read_is_named() -> None:
    samples = Samples([encoded(photo(0))[:60]], np.array([0]), places=["train/cat/7.png"])
    with pytest.raises(PenstockError, match=r"train/cat/7\.png: the image is damaged"):
        Changed(samples, COLOUR, CROP, 0)[[0]]
