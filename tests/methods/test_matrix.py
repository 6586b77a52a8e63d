"""Every method against the same checks: a method that joins the list is tested here without a new line."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import pliant
from pliant import anatomy
from pliant.methods import disabled, plan
from tests.conftest import tiny_vit

METHODS = [
    ("head", {}),
    ("full", {}),
    ("ln1", {}),
    ("mha", {}),
    ("ln2", {}),
    ("fc1", {}),
    ("fc2", {}),
    ("embed", {}),
    ("mha,fc1", {"blocks": "last:2"}),
    ("adapter", {"rank": 4}),
    ("adapter", {"rank": 4, "every": 2, "alpha": 0.5}),
    ("adapter", {"rank": 4, "blocks": "1,3"}),
    ("lora", {"rank": 4}),
    ("lora", {"rank": 4, "targets": ("qkv", "proj", "fc1", "fc2"), "blocks": "last:2"}),
]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in METHODS]


@pytest.fixture(params=METHODS, ids=IDS)
def case(request):
    return request.param


def train(model, made, steps=3):
    optimizer = torch.optim.AdamW(made.parameters(model), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, 32, 32, generator=generator), torch.randint(0, 5, (8,), generator=generator)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return x


def test_logits_are_bit_equal_at_the_start(vit, case):
    name, options = case
    x = torch.randn(3, 3, 32, 32)
    before = vit(x)
    plan(vit, name, **options).apply(vit)
    assert torch.equal(vit(x), before)


def test_everything_trained_gets_a_gradient_and_nothing_else(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    for _ in range(2):  # LoRA's A has no gradient while B is still zero
        train(vit, made, steps=1)
    F.cross_entropy(vit(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
    for parameter_name, parameter in vit.named_parameters():
        assert parameter.requires_grad == (parameter_name in made.trained_names())
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == parameter.requires_grad, (
            parameter_name
        )


def test_only_the_trained_part_changes(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    before = {key: value.clone() for key, value in vit.state_dict().items()}
    train(vit, made)
    changed = {key for key, value in vit.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == set(made.trained_names())


def test_frozen_parts_stay_in_eval_mode(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    assert all(module.training == (name == "full") for module in vit.modules())


def test_save_and_restore_give_equal_logits_on_another_head(vit, case, tmp_path):
    name, options = case
    backbone = copy.deepcopy(vit)
    made = plan(vit, name, **options)
    made.apply(vit)
    x = train(vit, made)
    pliant.save(vit, tmp_path / "out", classes=tuple("abcde"))
    torch.manual_seed(7)
    pliant.replace_head(backbone, 1000)  # the base comes back with a head of another width
    restored = pliant.restore(backbone, tmp_path / "out")
    assert torch.equal(restored(x), vit.eval()(x))
    assert restored.pliant_adaptation.classes == tuple("abcde")


def test_the_saved_file_holds_the_trained_part_alone(vit, case, tmp_path):
    from safetensors.torch import load_file

    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    pliant.save(vit, tmp_path)
    assert set(load_file(tmp_path / "learned.safetensors")) == set(made.trained_names())


def test_rows_cover_every_parameter_once(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    planned = sum(row.parameters for row in made.rows)
    made.apply(vit)
    assert planned == sum(parameter.numel() for parameter in vit.parameters())
    assert made.trained_parameters == sum(p.numel() for p in vit.parameters() if p.requires_grad)
    assert sum(row.share for row in made.rows) == pytest.approx(1)


def test_a_plan_does_not_touch_the_model(vit, case):
    name, options = case
    before = [(key, value.clone()) for key, value in vit.state_dict().items()]
    plan(vit, name, **options)
    after = list(vit.state_dict().items())
    assert [key for key, _ in after] == [key for key, _ in before]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(after, before, strict=True))
    assert all(parameter.requires_grad for parameter in vit.parameters())


def test_the_prefix_is_frozen_and_stages_equal_the_model(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    train(vit, made)
    vit.eval()
    found = anatomy.stages(vit)
    assert tuple(stage.name for stage in found[: len(made.prefix)]) == made.prefix
    x = torch.randn(3, 3, 32, 32)
    value = x
    for stage in found[: len(made.prefix)]:
        value = stage.run(value)
    assert not value.requires_grad
    for stage in found[len(made.prefix) :]:
        value = stage.run(value)
    assert torch.equal(value, vit(x))


def test_the_optimizer_gets_every_trained_parameter_once(vit, case):
    name, options = case
    made = plan(vit, name, **options)
    made.apply(vit)
    listed = [id(parameter) for group in made.parameters(vit) for parameter in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in vit.parameters() if p.requires_grad)


def test_two_forwards_are_equal(vit, case):
    name, options = case
    plan(vit, name, **options).apply(vit)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(vit(x), vit(x))


@pytest.mark.parametrize("name", ["adapter", "lora"])
def test_disabling_gives_the_base_back_exactly(vit, name):
    head = copy.deepcopy(vit)
    made = plan(vit, name, rank=4)
    made.apply(vit)
    x = train(vit, made)
    head.head.load_state_dict(vit.head.state_dict())
    adapted = vit(x)
    with disabled(vit):
        assert torch.equal(vit(x), head(x))
    assert torch.equal(vit(x), adapted)
    assert not torch.equal(adapted, head(x))


def test_disabling_what_changed_the_backbone_is_an_error(vit):
    plan(vit, "mha").apply(vit)
    with pytest.raises(pliant.PliantError, match="changes the backbone itself"), disabled(vit):
        pass


def test_buffers_of_a_frozen_backbone_do_not_drift():
    model = tiny_vit()
    model.norm_pre = torch.nn.Sequential(torch.nn.BatchNorm1d(17))  # tokens as channels: a backbone with statistics
    made = plan(model, "adapter", rank=4)
    made.apply(model)
    before = model.norm_pre[0].running_mean.clone()
    train(model, made)
    assert torch.equal(model.norm_pre[0].running_mean, before)


def test_layer_scale_survives(tmp_path):
    model, again = tiny_vit(init_values=1e-5), tiny_vit(init_values=1e-5)
    made = plan(model, "adapter", rank=4)
    made.apply(model)
    x = train(model, made)
    pliant.save(model, tmp_path)
    assert torch.equal(pliant.restore(again, tmp_path)(x), model(x))


def test_gradient_checkpointing_gives_equal_gradients():
    """Frozen first layers under (non-reentrant) checkpointing must not cut the gradient."""
    gradients = []
    for on in (False, True):
        model = tiny_vit()
        torch.manual_seed(0)
        made = plan(model, "adapter", rank=4)
        made.apply(model)
        for name, parameter in model.named_parameters():
            if ".up." in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
        model.set_grad_checkpointing(on)
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        F.cross_entropy(model(x), torch.arange(4)).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad})
    assert all(bool(g.abs().sum() > 0) for g in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])
