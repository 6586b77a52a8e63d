"""AdapterTune: the formula, the golden losses, the number of parameters."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from pliant.methods import plan
from pliant.methods.adapter import Adapter
from tests.conftest import tiny_vit


@pytest.mark.parametrize("number", [0, 1])
def test_golden_losses_and_logits(shared, number):
    """Losses of 8 SGD steps and the final logits of the published code, from its initial values."""
    golden = json.loads((shared / "golden/adapter_tiny.json").read_text())
    case, tensors = golden["cases"][number], load_file(shared / "golden/adapter_tiny.safetensors")
    own = {
        key.removeprefix(case["tag"] + "."): value
        for key, value in tensors.items()
        if key.startswith(case["tag"] + ".")
    }
    model = tiny_vit(**golden["timm"])
    backbone = {key.removeprefix("backbone."): value for key, value in own.items() if key.startswith("backbone.")}
    model.load_state_dict(backbone, strict=True)
    made = plan(model, "adapter", rank=case["rank"], every=case["every"], alpha=case["alpha"])
    assert made.trained_parameters == case["trainable_parameters_with_head"]
    made.apply(model)
    adapters = [module for module in model.modules() if isinstance(module, Adapter)]
    assert len(adapters) == len(case["adapter_blocks"])
    for block in case["adapter_blocks"]:
        assert isinstance(model.blocks[block].adapter, Adapter)
    for adapter, index in zip(
        adapters, sorted({int(k.split(".")[1]) for k in own if k.startswith("adapter_init.")}), strict=True
    ):
        values = {
            k.removeprefix(f"adapter_init.{index}."): v
            for k, v in own.items()
            if k.startswith(f"adapter_init.{index}.")
        }
        adapter.load_state_dict(values, strict=True)
    images = next(value for key, value in own.items() if "images" in key)
    optimizer = torch.optim.SGD(made.parameters(model), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(images), own["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(case["losses"], rel=1e-5)
    final = next(value for key, value in own.items() if "logits" in key)
    with torch.no_grad():
        torch.testing.assert_close(model(images), final, rtol=1e-5, atol=1e-5 * float(final.abs().max()))


@pytest.mark.parametrize(("width", "rank"), [(64, 4), (768, 16)])
def test_parameters_are_2dr_plus_r_plus_d(width, rank):
    assert sum(p.numel() for p in Adapter(width, rank).parameters()) == 2 * width * rank + rank + width


def test_formula_in_float64():
    adapter = Adapter(16, 3, alpha=0.7).double()
    torch.nn.init.normal_(adapter.up.weight)
    torch.nn.init.normal_(adapter.up.bias)
    h = torch.randn(2, 5, 16, dtype=torch.float64)
    z = h @ adapter.down.weight.T + adapter.down.bias
    gelu = z * 0.5 * (1 + torch.erf(z / 2**0.5))
    expected = h + 0.7 * (gelu @ adapter.up.weight.T + adapter.up.bias)
    torch.testing.assert_close(adapter(h), expected, rtol=1e-12, atol=1e-12)


def test_small_init_is_small_and_nearly_the_identity():
    torch.manual_seed(0)
    adapter = Adapter(256, 64, init="small")
    assert adapter.up.weight.std().item() == pytest.approx(1e-4, rel=0.05)
    assert adapter.up.bias.abs().max() == 0
    assert adapter.down.bias.abs().max() == 0
    h = torch.randn(2, 5, 256)
    assert 0 < (adapter(h) - h).abs().max() < 1e-2


def test_down_is_xavier_uniform():
    torch.manual_seed(0)
    weight = Adapter(256, 64).down.weight
    bound = (6 / (256 + 64)) ** 0.5
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_size_on_disk_of_rank_16_on_vit_base(tmp_path):
    import timm

    import pliant

    model = timm.create_model("vit_base_patch16_224", num_classes=10)
    plan(model, "adapter", rank=16).apply(model)
    pliant.save(model, tmp_path)
    head = 4 * (768 * 10 + 10)
    assert (tmp_path / "learned.safetensors").stat().st_size <= 1.3e6 + head
