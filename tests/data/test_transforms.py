"""Image to tensor: equal to torchvision, and random views that depend on their seed alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from pliant.data import Preprocess
from pliant.errors import PliantError

from .conftest import picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("size", [(32, 32), (200, 131), (131, 200), (33, 500), (7, 9)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875, 0.9])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_evaluation_equals_torchvision_bit_for_bit(size, crop_pct, interpolation):
    from torchvision import transforms

    image = picture(size=size)
    theirs = transforms.Compose(
        [
            transforms.Resize(int(56 / crop_pct), transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(56),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    ours = Preprocess(56, MEAN, STD, interpolation, crop_pct).evaluate(image)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs(image))


def test_the_mean_is_the_models_own():
    white = Image.new("RGB", (8, 8), "white")
    assert Preprocess(8, (0.5,) * 3, (0.5,) * 3).evaluate(white).unique().tolist() == [1.0]
    assert Preprocess(8, MEAN, STD).evaluate(white)[0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)


def test_a_very_long_image_does_not_fill_the_memory():
    strip = Image.new("RGB", (30_000, 1), "red")
    assert Preprocess(224, MEAN, STD).evaluate(strip).shape == (3, 224, 224)
    assert Preprocess(224, MEAN, STD).augment(strip, "crop", 0).shape == (3, 224, 224)


@pytest.mark.parametrize("policy", ["flip", "crop"])
def test_random_views_depend_on_their_seed_alone(policy):
    preprocess, image = Preprocess(16, MEAN, STD), picture(size=(40, 30))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    views = [preprocess.augment(image, policy, seed) for seed in range(20)]
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    random.seed(1)
    assert all(torch.equal(view, preprocess.augment(image, policy, seed)) for seed, view in enumerate(views))
    assert len({view.numpy().tobytes() for view in views}) == (2 if policy == "flip" else 20)


def test_flip_is_the_image_or_its_mirror():
    preprocess, image = Preprocess(16, MEAN, STD), picture(size=(40, 30))
    plain = preprocess.evaluate(image)
    views = [preprocess.augment(image, "flip", seed) for seed in range(200)]
    mirrored = sum(torch.equal(view, plain.flip(-1)) for view in views)
    assert mirrored + sum(torch.equal(view, plain) for view in views) == 200
    assert 70 < mirrored < 130


def test_no_policy_is_the_evaluation_and_an_unknown_one_an_error():
    preprocess = Preprocess(16, MEAN, STD)
    assert torch.equal(preprocess.augment(picture(), "none", 3), preprocess.evaluate(picture()))
    with pytest.raises(PliantError, match="augmentation 'mosaic' is none of none, flip, crop"):
        preprocess.augment(picture(), "mosaic", 0)


def test_stored_and_read_back():
    preprocess = Preprocess(16, MEAN, STD, "bilinear", 0.9)
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with pytest.raises(PliantError, match="preprocessing: has size, mean"):
        Preprocess.from_dict({"size": 3, "mean": MEAN})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": 0}, "size 0"),
        ({"crop_pct": 1.5}, "crop_pct 1.5"),
        ({"std": (0.5, 0.0, 0.5)}, "std positive"),
        ({"interpolation": "magic"}, "'magic' is none of nearest, bilinear"),
    ],
)
def test_senseless_values(changed, message):
    with pytest.raises(PliantError, match=message):
        Preprocess.from_dict({"size": 8, "mean": MEAN, "std": STD, **changed})
