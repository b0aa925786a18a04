"""Loaders: which samples a batch has, in which epoch, on which rank; and what the network is given of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import data, datasets
from penstock.data.specs import Digits
from penstock.preprocess import ImagePreprocess
from penstock.train import loaders, recipe
from penstock.train.learner import Normalize
from penstock.train.loaders import Order

counts, batches, seeds = st.integers(1, 200), st.integers(1, 40), st.integers(0, 2**32 - 1)


def drawn(order: Order, epoch: int = 0) -> list[int]:
    order.set_epoch(epoch)
    found = list(order)
    assert len(found) == len(order)
    return [index for batch in found for index in batch]


@given(counts, batches, seeds, st.integers(0, 5))
def test_each_sample_is_in_one_batch_of_an_epoch(count: int, batch: int, seed: int, epoch: int) -> None:
    order = Order(count, batch, seed)
    assert sorted(drawn(order, epoch)) == list(range(count))
    *others, last = (len(each) for each in order)
    assert set(others) <= {batch}
    assert 1 < last <= batch + 1 or 1 in (count, batch)


@given(counts, batches, seeds)
def test_an_epoch_s_order_is_its_own_and_the_same_whatever_came_before(count: int, batch: int, seed: int) -> None:
    once, again = Order(count, batch, seed), Order(count, batch, seed)
    orders = [drawn(once, epoch) for epoch in range(3)]
    assert drawn(again, 2) == orders[2]
    if count > 20:
        assert len({tuple(each) for each in orders}) == 3


@given(counts, batches, seeds, st.integers(1, 5))
def test_ranks_share_the_samples_and_have_as_many_batches(count: int, batch: int, seed: int, ranks: int) -> None:
    orders = [Order(count, batch, seed, None, rank, ranks) for rank in range(ranks)]
    assert len({len(order) for order in orders}) == 1
    seen = Counter(index for order in orders for index in drawn(order))
    assert set(seen) == set(range(count))
    assert sum(seen.values()) - count < ranks  # no more are drawn twice than it takes to come out even


@given(counts, batches, st.integers(1, 5))
def test_what_is_validated_on_is_seen_once_by_one_rank(count: int, batch: int, ranks: int) -> None:
    orders = [Order(count, batch, None, None, rank, ranks) for rank in range(ranks)]
    assert sorted(index for order in orders for index in drawn(order)) == list(range(count))


def test_weighted_drawing_gives_each_class_as_many() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    order = Order(1000, 50, 0, loaders.weights(labels))
    seen = Counter(int(labels[index]) for epoch in range(10) for index in drawn(order, epoch))
    assert all(abs(count / 10_000 - 1 / 3) < 0.02 for count in seen.values())


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pixels_become_the_server_s_numbers_to_the_bit(mode: str) -> None:
    channels = 1 if mode == "L" else 3
    preprocess = ImagePreprocess(
        input="image",
        mode=mode,
        height=5,
        width=7,
        mean=(0.485, 0.456, 0.406)[:channels],
        std=(0.229, 0.224, 0.225)[:channels],
    )
    pixels = np.random.default_rng(0).integers(0, 256, (40, 5, 7, channels), np.uint8)
    pixels.reshape(-1)[:256] = np.arange(256)
    found = Normalize(preprocess)(torch.from_numpy(pixels)).numpy()
    assert found.dtype == np.float32
    assert found.tobytes() == preprocess.normalize(pixels).tobytes()


def test_a_batch_holds_its_samples() -> None:
    image = recipe.load("digits").preprocess
    assert isinstance(image, ImagePreprocess)
    samples = data.load(Digits())["val"]
    inputs, labels = loaders.dataset(samples, image)[[3, 1, 7]]
    assert np.array_equal(inputs["image"][..., 0].numpy(), samples.items[[3, 1, 7]])
    assert labels.tolist() == samples.labels[[3, 1, 7]].tolist()
    numbers = Normalize(image)(inputs["image"]).numpy()
    assert np.array_equal(numbers, datasets.rows(samples, image).inputs["image"][[3, 1, 7]])
