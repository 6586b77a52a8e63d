"""Plans: what they print, refuse and choose."""

from __future__ import annotations

import pytest
import torch

from pliant import PliantError
from pliant.methods import plan
from pliant.methods.plan import parse_blocks
from tests.conftest import tiny_vit


@pytest.mark.parametrize(("text", "expected"), [
    ("all", (0, 1, 2, 3, 4, 5, 6, 7)), ("last:3", (5, 6, 7)), ("0,3,5-7", (0, 3, 5, 6, 7)), ("2", (2,)), ([3, 1], (1, 3)),
])  # fmt: skip
def test_blocks(text, expected):
    assert parse_blocks(text, 8) == expected


@pytest.mark.parametrize("text", ["", "8", "last:9", "last:0", "first", "3-1", "-1", "last:x", []])
def test_bad_blocks(text):
    with pytest.raises(PliantError, match="--blocks"):
        parse_blocks(text, 8)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("adaptor", {}, "did you mean adapter"),
    ("q_proj", {}, "unknown method 'q_proj'"),
    ("mha,fc3", {}, "unknown method 'fc3', did you mean fc"),
    ("components", {}, "unknown method"),
    ("mha,adapter", {}, "adapter cannot be combined"),
    ("head", {"blocks": "last:2"}, "--blocks does not go with --method head"),
    ("adapter", {"rank": 0}, "--rank 0"),
    ("adapter", {"rank": -3}, "--rank -3"),
    ("adapter", {"rank": 65}, "--rank 65 must be from 1 to the width of the model's tokens, 64"),
    ("adapter", {"alpha": 0.0}, "--alpha 0.0"),
    ("adapter", {"init": "large"}, "--init 'large'"),
    ("lora", {"rank": 65}, "--rank 65"),
    ("lora", {"targets": ("q_proj",)}, "--targets 'q_proj' is none of qkv, proj, fc1, fc2"),
    ("mha", {"rank": 4}, "takes no option 'rank'"),
    ("lora", {"every": 2}, "takes no option 'every'"),
    ("full", {"blocks": "last:2"}, "--blocks does not go with --method full"),
])  # fmt: skip
def test_bad_plans_are_one_clear_line(vit, name, options, message):
    with pytest.raises(PliantError) as caught:
        plan(vit, name, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(PliantError, match="no head"):
        plan(tiny_vit(num_classes=0), "adapter")


def test_adapting_twice_is_refused(vit):
    made = plan(vit, "adapter", rank=4)
    made.apply(vit)
    with pytest.raises(PliantError, match="already adapted"):
        plan(vit, "adapter")
    with pytest.raises(PliantError, match="already adapted"):
        made.apply(vit)


def test_a_plan_for_another_model_is_refused(vit):
    made = plan(tiny_vit(depth=6), "mha")
    with pytest.raises(PliantError, match="made for another model"):
        made.apply(vit)


def test_the_head_is_never_adapted(vit):
    plan(vit, "lora", rank=4, targets=("qkv", "proj", "fc1", "fc2")).apply(vit)
    assert not any("head" in name and "lora" in name for name, _ in vit.named_parameters())


@pytest.mark.parametrize(("name", "options", "prefix"), [
    ("head", {}, ("embed", "block.0", "block.1", "block.2", "block.3", "pool")),
    ("adapter", {}, ("embed", "block.0")),
    ("adapter", {"blocks": "last:1"}, ("embed", "block.0", "block.1", "block.2", "block.3")),
    ("adapter", {"every": 2, "blocks": "1-3"}, ("embed", "block.0", "block.1")),
    ("mha", {"blocks": "last:1"}, ("embed", "block.0", "block.1", "block.2")),
    ("mha", {}, ("embed",)),
    ("embed", {}, ()),
    ("full", {}, ()),
])  # fmt: skip
def test_prefix(vit, name, options, prefix):
    assert plan(vit, name, **({"rank": 4} if name == "adapter" else {}), **options).prefix == prefix


def test_bare_parameters_are_selected_too(vit):
    made = plan(vit, "embed")
    assert {"cls_token", "pos_embed"} <= set(made.trained_names())


def test_the_table_prints(vit):
    text = str(plan(vit, "adapter", rank=4))
    for word in ("adapter", "mha", "frozen", "trained", "head", "%"):
        assert word in text


def test_biases_and_norms_get_no_weight_decay(vit):
    made = plan(vit, "ln1,mha")
    made.apply(vit)
    groups = made.parameters(vit)
    for group in groups:
        assert all((p.ndim > 1) == ("weight_decay" not in group) for p in group["params"])
    assert {group["name"].split(",")[0] for group in groups} == {"body", "head"}
    torch.optim.AdamW(groups, lr=1e-3)
