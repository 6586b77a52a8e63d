"""Against what the published procedure returns, and against values computed independently in float64."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pliant
from pliant import anatomy
from pliant.measure.bounds import block_bounds
from pliant.measure.shared_input import SharedInput


@pytest.fixture(scope="module")
def golden(shared):
    from timm.models.vision_transformer import VisionTransformer

    known = json.loads((shared / "golden" / "plasticity_tiny.json").read_text())
    tensors = load_file(shared / "golden" / "plasticity_tiny.safetensors")
    options = dict(known["timm"])
    norm = partial(torch.nn.LayerNorm, eps=options.pop("norm_eps"))
    model = VisionTransformer(**options, norm_layer=norm).eval()
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
    return model, tensors, known


def by_block(measured, column="mean"):
    return measured.blocks().pivot(index="block", columns="component", values=column)[list(pliant.measure.COMPONENTS)]


def test_single_rates_are_those_of_the_published_procedure(golden):
    model, tensors, known = golden
    x, y = tensors["images_x"], tensors["images_y"]
    found = pliant.plasticity(model, [x], [y], protocol="shared-input", estimator="paired")
    np.testing.assert_allclose(found.rates, tensors["rates"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(by_block(found), known["paired_mean"], rtol=1e-5)


@pytest.mark.parametrize(
    ("protocol", "key"), [("shared-input", "all_pairs_mean"), ("in-situ", "in_situ_all_pairs_mean")]
)
def test_means_over_all_pairs(golden, protocol, key):
    model, tensors, known = golden
    found = pliant.plasticity(
        model, [tensors["images_x"]], [tensors["images_y"]], protocol=protocol, estimator="all-pairs"
    )
    assert found.summary["pairs"] == 64
    np.testing.assert_allclose(by_block(found), known[key], rtol=1e-6)


def test_bounds_on_the_embedding(golden):
    model, tensors, known = golden
    protocol = SharedInput(model)
    family, described = anatomy.family_of(model), anatomy.find(model)
    with torch.no_grad():
        images = torch.cat([tensors["images_x"], tensors["images_y"]])
        protocol.measure(family.embed(model, images), range(1))
    assert protocol.extents[0]["MHA"].largest == pytest.approx(known["token_radius_max"], rel=1e-6)
    found = [
        list(block_bounds(model, described, parts, extents, biases=False).values())
        for parts, extents in zip(protocol.parts, protocol.extents, strict=True)
    ]
    np.testing.assert_allclose(found, known["upper_bounds_on_embedding_inputs_bias_free_attention"], rtol=1e-6)
