"""Every family and variant: both protocols against plainly coded ones, bounds above rates, local figures between."""

import numpy as np
import pytest
import torch

from pliant import anatomy
from pliant.measure.bounds import block_bounds
from pliant.measure.jacobian import local_norms
from pliant.measure.parts import COMPONENTS, attention_on, component_on, parts_of
from pliant.measure.protocols import InSitu
from pliant.measure.shared_input import SharedInput, fc2_width, padded
from tests.anatomy import zoo

PAIRS = 4


def embedded(name):
    model = zoo.build(name)
    inputs = torch.cat([zoo.inputs(name, PAIRS), zoo.inputs(name, PAIRS + 1)[:PAIRS]])
    with torch.no_grad():
        return model, anatomy.family_of(model).embed(model, inputs)


def rates_of(function, x):
    """Rates of all pairs, in float64 from float32 outputs, plainly."""
    out = function(x).double()
    outs = (out[:PAIRS, None] - out[None, PAIRS:]).flatten(2).norm(dim=2)
    x = x.double()
    return (outs / (x[:PAIRS, None] - x[None, PAIRS:]).flatten(2).norm(dim=2)).numpy()


@pytest.mark.parametrize("name", zoo.MODELS)
@torch.no_grad()
def test_shared_input_equals_applying_every_component(name):
    model, tokens = embedded(name)
    protocol = SharedInput(model)
    found = protocol.measure(tokens, range(PAIRS)).rates.reshape(len(protocol.parts), len(COMPONENTS), PAIRS, PAIRS)
    for block, parts in enumerate(protocol.parts):
        attention = attention_on(model, protocol.family, parts, tokens)
        for place, component in enumerate(COMPONENTS):
            x = padded(tokens, fc2_width(parts)) if component == "FC2" else tokens
            wanted = rates_of(component_on(component, parts, attention), x)
            np.testing.assert_allclose(found[block, place], wanted, rtol=2e-5, err_msg=f"{component} of block {block}")


@pytest.mark.parametrize("name", zoo.MODELS)
@torch.no_grad()
def test_in_situ_equals_components_on_their_own_inputs(name):
    """The block, written out: the inputs that hooks saw are those that the residual stream gives."""
    model, tokens = embedded(name)
    protocol = InSitu(model)
    size = len(protocol.series)
    found = protocol.measure(tokens, range(PAIRS)).rates.reshape(len(protocol.parts), size, PAIRS, PAIRS)
    family, seen = anatomy.family_of(model), {}
    for block, parts in enumerate(protocol.parts):
        firsts = (parts.ln1, parts.attention, parts.ln2, parts.fc1[0], parts.inner_norm or parts.fc2)
        handles = [
            module.register_forward_pre_hook(
                lambda _, args, options, name=component: seen.update(
                    {name: args[0] if args else options["hidden_states"]}
                ),
                with_kwargs=True,
            )
            for component, module in zip(COMPONENTS, firsts, strict=True)
        ]
        attention = attention_on(model, family, parts, tokens)
        tokens = family.block(model, parts.block, tokens)
        for handle in handles:
            handle.remove()
        for place, component in enumerate(COMPONENTS):
            wanted = rates_of(component_on(component, parts, attention), seen[component])
            np.testing.assert_allclose(found[block, place], wanted, rtol=2e-5, err_msg=f"{component} of block {block}")
        if list(seen).index("LN1") < list(seen).index("MHA"):
            sub = rates_between(seen["LN1"], component_on("MHA", parts, attention)(seen["MHA"]))
        else:  # a post-norm block
            sub = rates_between(seen["MHA"], parts.ln1(seen["LN1"]))
        np.testing.assert_allclose(found[block, size - 2], sub, rtol=2e-5)


def rates_between(x, out):
    x, out = x.double(), out.double()
    outs = (out[:PAIRS, None] - out[None, PAIRS:]).flatten(2).norm(dim=2)
    return (outs / (x[:PAIRS, None] - x[None, PAIRS:]).flatten(2).norm(dim=2)).numpy()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_bound_is_above_every_rate_and_local_figure(name):
    model, tokens = embedded(name)
    described = anatomy.find(model)
    for protocol in (SharedInput(model), InSitu(model)):
        with torch.no_grad():
            sample = protocol.measure(tokens, range(PAIRS))
        largest = sample.rates.reshape(described.depth, -1, PAIRS * PAIRS).max(-1)[:, : len(COMPONENTS)]
        rotary = attention_on(model, anatomy.family_of(model), protocol.parts[0], tokens).rotary
        columns = described.width if protocol.name == "shared-input" else None
        bounds = np.array([
            list(block_bounds(model, described, parts, extents, rotary=rotary, first_columns=columns).values())
            for parts, extents in zip(protocol.parts, protocol.extents, strict=True)
        ])  # fmt: skip
        assert np.isfinite(bounds).all(), f"{name}, {protocol.name}: no bound for {bounds}"
        assert (bounds >= largest * (1 - 1e-6)).all(), f"{name}, {protocol.name}: {bounds / largest}"
    local = np.stack(list(local_norms(model, tokens)))
    assert local.shape == (described.depth, len(COMPONENTS), 2 * PAIRS) and np.isfinite(local).all()
    assert (local.max(-1) <= bounds * (1 + 1e-5)).all(), f"{name}: {bounds / local.max(-1)}"


def test_a_family_whose_angles_turn_is_known_as_rotary():
    for name, turns in (
        ("dinov3", True),
        ("hf-dinov3-bare", True),
        ("timm-vit", False),
        ("hf-beit", False),
        ("gpt2", False),
    ):
        model, tokens = embedded(name)
        parts = parts_of(model, anatomy.find(model))[0]
        with torch.no_grad():
            assert attention_on(model, anatomy.family_of(model), parts, tokens).rotary is turns, name
