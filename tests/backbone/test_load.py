"""Loading backbones: strict weights, resampled positions, replaced heads, and no random weights by accident."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file

import pliant
from pliant import PliantError


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    model = pliant.load("test_vit", img_size=64, num_classes=7, random_init=True)
    path = tmp_path / "w.safetensors"
    save_file(model.state_dict(), path)
    return path, model


def state_of(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def test_a_local_file_loads_exactly(weights):
    path, model = weights
    loaded = pliant.load("test_vit", weights=path, img_size=64, num_classes=7)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    assert loaded.pliant_identity.notes == ()
    assert not loaded.training


def test_positions_are_resampled_and_it_is_said(weights):
    path, model = weights
    loaded = pliant.load("test_vit", weights=path, img_size=96, num_classes=7)
    assert loaded.pos_embed.shape[1] == 37
    assert "position grid resampled from 17 to 37 tokens" in loaded.pliant_identity.notes
    assert torch.equal(loaded.pos_embed[:, 0], model.pos_embed[:, 0])  # the class token's position is no grid
    assert torch.equal(loaded.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
    assert loaded(torch.randn(1, 3, 96, 96)).shape == (1, 7)


def test_a_head_of_another_width_is_replaced_and_it_is_said(weights):
    path, _ = weights
    loaded = pliant.load("test_vit", weights=path, img_size=64, num_classes=3)
    assert loaded.head.out_features == 3
    assert "the head of 7 classes is replaced by a new one of 3 classes" in loaded.pliant_identity.notes


@pytest.mark.parametrize("change", ["missing", "unexpected", "reshaped"])
def test_what_does_not_fit_names_the_keys(weights, change):
    path, model = weights
    state = state_of(model)
    key = "blocks.1.attn.qkv.weight"
    if change == "missing":
        del state[key]
    elif change == "unexpected":
        state["blocks.77.x"] = torch.zeros(1)
        key = "blocks.77.x"
    else:
        state[key] = torch.zeros(3, 3)
    save_file(state, path)
    with pytest.raises(PliantError) as caught:
        pliant.load("test_vit", weights=path, img_size=64)
    assert key in str(caught.value) and "\n" not in str(caught.value)


def test_weights_of_another_architecture_are_refused(weights):
    path, _ = weights
    with pytest.raises(PliantError, match="does not fit VisionTransformer"):
        pliant.load("vit_tiny_patch16_224", weights=path)


def test_another_patch_size_is_another_model(weights):
    path, model = weights
    state = state_of(model)
    state["patch_embed.proj.weight"] = torch.randn(64, 3, 8, 8)
    save_file(state, path)
    with pytest.raises(PliantError, match="patch_embed.proj.weight is"):
        pliant.load("test_vit", weights=path, img_size=64)


@pytest.mark.parametrize(("name", "message"), [
    ("vit_smal_patch14_dinov2", "did you mean vit_small_patch14_dinov2"), ("resnet18", "takes no image size"),
    ("vit_small_patch14_dinov2.nonsense", "unknown weights"),
])  # fmt: skip
def test_unknown_models_offer_near_names(name, message):
    with pytest.raises(PliantError, match=message):
        pliant.load(name)


def test_no_random_weights_by_accident():
    """The hub is not reachable in tests: this must be an error that says how to go on, not a random model."""
    with pytest.raises(PliantError, match="--weights FILE.safetensors"):
        pliant.load("vit_tiny_patch16_224.augreg_in21k")
    with pytest.raises(PliantError, match="contradict"):
        pliant.load("test_vit", weights="x.safetensors", random_init=True)


@pytest.mark.parametrize("size", [100, 15])
def test_image_sizes_must_fit_the_patch(size):
    with pytest.raises(PliantError, match="divisible|cannot be built"):
        pliant.load("test_vit", img_size=size, random_init=True)


def test_pickles_are_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    for name in ("w.pth", "w.bin", "w.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(PliantError):
            pliant.load("test_vit", weights=tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_a_missing_file(tmp_path):
    with pytest.raises(PliantError, match="no such file"):
        pliant.load("test_vit", weights=tmp_path / "none.safetensors")


def test_the_models_own_preprocessing_is_read():
    """This one wants 0.5, not ImageNet's mean."""
    model = pliant.load("vit_tiny_patch16_224.augreg_in21k", random_init=True)
    assert model.pliant_identity.preprocess["mean"] == [0.5, 0.5, 0.5]
    model = pliant.load("vit_small_patch14_dinov2", img_size=28, random_init=True)
    assert model.pliant_identity.preprocess["mean"] == [0.485, 0.456, 0.406]


def test_the_shared_backbone_loads(shared):
    path = shared / "weights/vit_small_patch14_dinov2_saliency.safetensors"
    model = pliant.load("vit_small_patch14_dinov2", weights=path, num_classes=10, img_size=112)
    assert model.blocks[0].ls1.gamma.unique().numel() > 10  # LayerScale is the file's, not its initial value
    assert model.pliant_identity.notes[0] == "position grid resampled from 1370 to 65 tokens"


def test_both_heads_of_a_distilled_model_are_replaced(tmp_path):
    torch.manual_seed(0)
    model = pliant.load("deit_tiny_distilled_patch16_224", img_size=32, num_classes=7, random_init=True)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    loaded = pliant.load(
        "deit_tiny_distilled_patch16_224", weights=tmp_path / "w.safetensors", img_size=32, num_classes=3
    )
    assert loaded.head.out_features == loaded.head_dist.out_features == 3
    assert loaded(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    assert pliant.fingerprint(model) == pliant.fingerprint(loaded)
    plan = pliant.plan(loaded, "adapter", rank=4)
    assert {"head.weight", "head_dist.weight"} <= set(plan.trained["head"])


def test_lora_refuses_layers_that_it_would_not_reach():
    model = pliant.load("eva02_tiny_patch14_224", img_size=28, num_classes=3, random_init=True)
    with pytest.raises(PliantError, match="LoRA cannot reach blocks.0.attn.qkv"):
        pliant.plan(model, "lora")
    pliant.plan(model, "lora", targets=("proj",))
