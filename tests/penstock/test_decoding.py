"""Decoding in the graph: the numbers of pixels are those of the recorded preprocessing, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock import decoding
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, Signature, Tensor

GREY = ImagePreprocess(input="image", mode="L", height=4, width=6, mean=(0.3,), std=(0.37,), dtype="uint8")
COLOUR = GREY.model_copy(update={"mode": "RGB", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})


class Kept(nn.Module):
    """Answers with its picture, and keeps how it lay."""

    def forward(self, other: torch.Tensor, image: torch.Tensor) -> Any:
        self.strides = image.stride()
        return image, other


def signature(image: ImagePreprocess) -> Signature:
    inputs = (Tensor(name="other", shape=("n",)), Tensor(name="image", shape=("n", *image.shape)))
    return Signature(inputs=inputs, outputs=(), dims={"n": Dim(opt=2, max=4)})


@pytest.mark.parametrize("image", [GREY, COLOUR])
@given(scale=st.sampled_from([1 / 255, 1.0, 2 / 255, 1 / 256]), seed=st.integers(0, 9))
def test_pixels_become_the_numbers_of_the_preprocessing_laid_out_as_those(
    image: ImagePreprocess, scale: float, seed: int
) -> None:
    image = image.model_copy(update={"scale": scale})
    pixels = np.random.default_rng(seed).integers(0, 256, (3, *image.shape), np.uint8)
    inner, other = Kept(), torch.ones(3)
    found, passed = decoding.before(inner, signature(image), image)(other, torch.from_numpy(pixels))
    expected = torch.from_numpy(image.normalize(pixels))
    assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert inner.strides == expected.stride()
    assert passed is other


def test_a_module_that_takes_numbers_is_left_as_it_is() -> None:
    inner = Kept()
    assert decoding.before(inner, signature(GREY), None) is inner
    assert decoding.before(inner, signature(GREY), GREY.model_copy(update={"dtype": "float32"})) is inner


def test_in_half_precision_the_module_gets_that() -> None:
    halved = decoding.before(Kept(), signature(COLOUR), COLOUR).half()
    found, _ = halved(torch.ones(1), torch.zeros((1, *COLOUR.shape), dtype=torch.uint8))
    assert found.dtype == torch.float16
