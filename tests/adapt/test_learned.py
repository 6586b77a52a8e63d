"""Saving and restoring: strict keys, fingerprints, class names; what is refused and how it is said."""

from __future__ import annotations

import json
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file

import pliant
from pliant import PliantError
from pliant.methods import plan
from tests.conftest import tiny_vit


@pytest.fixture
def saved(vit, tmp_path):
    plan(vit, "adapter", rank=4).apply(vit)
    torch.nn.init.normal_(vit.blocks[0].adapter.up.weight)
    return pliant.save(vit, tmp_path / "out", classes=tuple("abcde"))


def refused(model, folder) -> str:
    with pytest.raises(PliantError) as caught:
        pliant.restore(model, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_depth_is_refused(saved):
    assert "other weights" in refused(tiny_vit(depth=3), saved)


def test_another_width_is_refused(saved):
    assert "other weights" in refused(tiny_vit(embed_dim=32), saved)


def test_the_same_shape_with_other_weights_is_refused(saved):
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight[0, 0] += 1e-3
    assert "other weights" in refused(model, saved)


@pytest.mark.parametrize("change", ["drop", "add", "reshape", "rename"])
def test_strict_keys(saved, change):
    path = saved / "learned.safetensors"
    state = load_file(path)
    if change == "drop":
        del state["blocks.1.adapter.up.weight"]
    elif change == "add":
        state["blocks.9.adapter.up.weight"] = torch.zeros(1)
    elif change == "reshape":
        state["blocks.1.adapter.up.weight"] = torch.zeros(64, 5)
    else:
        state = {key.replace("blocks.1.adapter.", "blocks.1.tuner."): value for key, value in state.items()}
    save_file(state, path)
    message = refused(tiny_vit(), saved)
    assert "blocks.9" in message if change == "add" else "blocks.1." in message
    assert "torch" in message and "timm" in message  # the versions it was saved with


def test_an_adapted_model_is_not_a_backbone(saved):
    model = tiny_vit()
    plan(model, "ln1").apply(model)
    assert "already adapted" in refused(model, saved)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("learned.json", "{", "not readable as JSON"), ("learned.json", "{}", "of a format"),
    ("learned.safetensors", "not tensors", "not a readable safetensors file"),
])  # fmt: skip
def test_damaged_files(saved, name, content, message):
    (saved / name).write_text(content)
    assert message in refused(tiny_vit(), saved)


def test_a_folder_without_a_model(tmp_path):
    assert "holds no learned.json" in refused(tiny_vit(), tmp_path)


def test_saving_a_plain_model_is_an_error(vit, tmp_path):
    with pytest.raises(PliantError, match="not adapted"):
        pliant.save(vit, tmp_path)


def test_the_config_says_what_it_is(saved):
    config = json.loads((saved / "learned.json").read_text())
    assert config["classes"] == list("abcde")
    assert config["method"] == "adapter" and config["options"]["rank"] == 4 and config["blocks"] == [0, 1, 2, 3]
    assert len(config["backbone"]["fingerprint"]) == 64
    assert set(config["versions"]) == {"torch", "timm", "transformers", "peft"}


def test_the_fingerprint_ignores_the_head_alone():
    first, second = tiny_vit(), tiny_vit()
    pliant.replace_head(second, 9)
    assert pliant.fingerprint(first) == pliant.fingerprint(second)
    for name, parameter in second.named_parameters():
        if name.startswith(("head", "pos_embed")):
            continue
        with torch.no_grad():
            parameter.flatten()[0] += 1
        assert pliant.fingerprint(first) != pliant.fingerprint(second), name
        with torch.no_grad():
            parameter.copy_(dict(first.named_parameters())[name])


def test_an_identity_comes_back_without_a_network(tmp_path, monkeypatch):
    """`load_adapted` on local weights opens no socket."""

    def closed(*_, **__):
        raise AssertionError("network")

    torch.manual_seed(0)
    model = pliant.load("test_vit", img_size=32, num_classes=1000, random_init=True)
    weights = tmp_path / "base.safetensors"
    save_file(model.state_dict(), weights)
    monkeypatch.setattr(socket.socket, "connect", closed)
    model = pliant.load("test_vit", weights=weights, img_size=32, num_classes=4)
    made = plan(model, "lora", rank=4)
    made.apply(model)
    torch.nn.init.normal_(next(p for n, p in model.named_parameters() if ".lora_B." in n))
    pliant.save(model, tmp_path / "out", classes=tuple("abcd"))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(pliant.load_adapted(tmp_path / "out")(x), model(x))
    weights.unlink()
    with pytest.raises(PliantError, match=r"base.safetensors: no such file"):
        pliant.load_adapted(tmp_path / "out")


def test_what_is_saved_does_not_depend_on_what_was_frozen_later(vit, tmp_path):
    plan(vit, "adapter", rank=4).apply(vit)
    vit.requires_grad_(False)
    pliant.save(vit, tmp_path)
    assert "blocks.0.adapter.up.weight" in load_file(tmp_path / "learned.safetensors")
