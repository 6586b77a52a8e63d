"""Models in transformers' layout: from a local folder without a network, strictly, resized, with a new head."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pliant import anatomy
from pliant.backbone import fingerprint, load
from pliant.errors import PliantError
from tests.anatomy.zoo import CLASSES, build, forward, inputs, run

SAVED = ["hf-vit", "hf-deit", "hf-deit-distilled", "hf-dinov2", "hf-dinov2-giant", "hf-dinov2-registers",
         "hf-dinov3-bare", "hf-clip", "hf-clip-bare", "hf-siglip", "hf-siglip-bare", "hf-beit", "hf-beit-shared",
         "hf-beit-absolute"]  # fmt: skip
BARE = ["hf-vit-bare", "hf-deit-bare", "hf-dinov2-bare", "hf-dinov2-registers-bare", "hf-beit-bare"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of the named model, written once; tests that change it copy it."""
    made: dict[str, Path] = {}

    def save(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            build(name).save_pretrained(made[name])
        return made[name]

    return save


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a tiny ViT classifier's folder, to be spoiled."""
    return Path(shutil.copytree(saved("hf-vit"), tmp_path / "vit"))


def noted(model) -> str:
    return "; ".join(model.pliant_identity.notes)


@pytest.mark.parametrize("name", SAVED)
def test_a_local_folder_gives_the_same_logits(name, saved):
    model = load(str(saved(name)))
    x = inputs(name)
    assert torch.equal(forward(model, x), forward(build(name), x))
    assert not model.training and model.pliant_identity.img_size == 32
    assert model.pliant_identity.weights == str(saved(name) / "model.safetensors")


@pytest.mark.parametrize(("name", "size"), [(name, 48) for name in SAVED + BARE] + [("hf-vit", None)])
def test_a_new_head_and_another_size(name, size, saved):
    torch.manual_seed(0)
    model = load(str(saved(name)), num_classes=7, img_size=size)
    x = torch.randn(2, 3, size or 32, size or 32)
    logits = forward(model, x)
    assert logits.shape == (2, 7) and torch.equal(run(anatomy.stages(model), x), logits)
    assert "head" in noted(model) and "7 classes" in noted(model)
    if size and "dinov3" not in name:  # rotary positions have no grid
        assert "resampled from" in noted(model)
    found = anatomy.find(model)
    kept = found.blocks[1].path + "."
    old = {key.partition(".1.")[2]: value for key, value in build(name).state_dict().items() if ".1." in key}
    new = {key.removeprefix(kept): value for key, value in model.state_dict().items() if key.startswith(kept)}
    assert all(torch.equal(new[key], old[key]) for key in new if "relative_position" not in key)


@pytest.mark.parametrize("name", BARE[:1] + BARE[2:3])
def test_without_classes_no_head_is_made_up(name, saved):
    for size in (None, 48):
        model = load(str(saved(name)), img_size=size)
        assert anatomy.find(model).head is None and "the weights have no head" in noted(model)
    assert fingerprint(load(str(saved(name)))) == fingerprint(load(str(saved(name)), num_classes=3))


def test_the_head_stays_where_it_fits(saved):
    model = load(str(saved("hf-vit")), num_classes=CLASSES)
    assert torch.equal(model.classifier.weight, build("hf-vit").classifier.weight) and "head" not in noted(model)


def test_grids_are_resampled_in_place(saved):
    model = load(str(saved("hf-vit")), img_size=48)
    old = build("hf-vit").vit.embeddings.position_embeddings
    new = model.vit.embeddings.position_embeddings
    assert new.shape == (1, 37, 32) and torch.equal(new[:, 0], old[:, 0])
    smooth = load(str(saved("hf-vit")), img_size=64).vit.embeddings.position_embeddings[:, 1:]
    assert torch.allclose(smooth.mean(dim=1), old[:, 1:].mean(dim=1), atol=0.05)


def test_half_precision_files_are_computed_in_single(folder):
    file = folder / "model.safetensors"
    save_file({key: value.half() for key, value in load_file(file).items()}, file, metadata={"format": "pt"})
    assert {parameter.dtype for parameter in load(str(folder)).parameters()} == {torch.float32}


def test_names_of_earlier_versions_are_understood(folder):
    file = folder / "model.safetensors"
    old = {
        "layernorm_before": "layernorm_before", "layernorm_after": "layernorm_after", "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense", "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key", "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
    }  # fmt: skip
    state = {}
    for key, value in build("hf-vit").state_dict().items():
        key = key.replace("vit.layers.", "vit.encoder.layer.")
        for new, before in old.items():
            key = key.replace(new, before)
        state[key] = value.contiguous()
    save_file(state, file, metadata={"format": "pt"})
    x = inputs("hf-vit")
    assert torch.equal(load(str(folder))(x).logits, build("hf-vit")(x).logits)


def test_the_image_tower_of_a_whole_clip(tmp_path):
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    text = {**small, "vocab_size": 40, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
    whole = CLIPModel(CLIPConfig(text_config=text, vision_config={**small, "image_size": 32, "patch_size": 8})).eval()
    whole.save_pretrained(tmp_path)
    model = load(str(tmp_path), num_classes=3)
    x = inputs("hf-clip")
    tokens = whole.vision_model(x).last_hidden_state
    assert torch.equal(model.vision_model(x).last_hidden_state, tokens) and model(x).logits.shape == (3, 3)
    assert "text_model" in noted(model) and "left out" in noted(model)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("vit.layernorm.weight"), "missing: vit.layernorm.weight"),
        (lambda state: state.update(extra=torch.zeros(2)), "unexpected: extra"),
        (lambda state: state.update({"vit.layernorm.weight": torch.zeros(31)}), "vit.layernorm.weight (31 in the file"),
    ],
)
def test_other_keys_are_errors_that_name_them(folder, spoil, message):
    file = folder / "model.safetensors"
    state = load_file(file)
    spoil(state)
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(PliantError, match="does not fit ViTForImageClassification") as caught:
        load(str(folder), num_classes=9)
    assert message in str(caught.value)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PliantError, match="pytorch_model.bin is pickled"):
        load(str(folder))
    with pytest.raises(PliantError, match="pickled"):
        load(str(folder), weights=folder / "pytorch_model.bin")


def test_folders_without_what_is_needed(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(PliantError, match="no model.safetensors"):
        load(str(folder))
    (folder / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(PliantError, match="config.json: not a configuration"):
        load(str(folder), random_init=True)
    (folder / "config.json").unlink()
    with pytest.raises(PliantError, match="no config.json"):
        load(str(folder))
    with pytest.raises(PliantError, match="no such folder"):
        load(str(tmp_path / "nowhere"))


def test_a_language_model_is_refused(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    with pytest.raises(PliantError, match="gpt2 model that takes no square images"):
        load(str(tmp_path), num_classes=3)


def test_image_size_must_fit_the_patch(saved):
    with pytest.raises(PliantError, match="patch of 8; take 40 or 48"):
        load(str(saved("hf-vit")), img_size=44)


@pytest.mark.parametrize("name", ["hf-vit", "hf-dinov3-bare"])
def test_random_weights_only_when_asked_for(name, saved):
    torch.manual_seed(3)
    first = load(str(saved(name)), num_classes=4, img_size=48, random_init=True)
    torch.manual_seed(3)
    second = load(str(saved(name)), num_classes=4, img_size=48, random_init=True)
    assert "random" in noted(first) and fingerprint(first) == fingerprint(second)
    assert forward(first, torch.randn(1, 3, 48, 48)).shape == (1, 4)


def test_the_hub_out_of_reach(saved, tmp_path):
    with pytest.raises(PliantError) as caught:
        load("some-org/some-model", num_classes=2)
    message = str(caught.value)
    assert "could not be had from the hub" in message and "--weights" in message and "folder" in message
    file = saved("hf-vit") / "model.safetensors"  # its config.json lies beside it: no hub needed
    assert forward(load("some-org/some-model", weights=file), inputs("hf-vit")).shape == (3, CLASSES)


def test_names_on_the_hub(saved, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, file):
        asked.append((name, file))
        if not (saved("hf-dinov2") / file).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(file)
        return str(saved("hf-dinov2") / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    model = load("org/dino", num_classes=CLASSES)
    assert model.pliant_identity.weights == "hub:org/dino" and ("org/dino", "model.safetensors") in asked
    assert torch.equal(forward(model, inputs("hf-dinov2")), forward(build("hf-dinov2"), inputs("hf-dinov2")))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (
            {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "size": {"height": 32, "width": 32}},
            {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "crop_pct": 1.0},
        ),
        (
            {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.1, 0.2, 0.3], "resample": 3, "do_center_crop": True,
             "size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}},
            {"mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3], "interpolation": "bicubic", "crop_pct": 0.875},
        ),
        ({"do_normalize": False, "size": 32}, {"mean": [0.0] * 3, "std": [1.0] * 3}),
        ({"image_processor": {"image_mean": [0.2] * 3, "image_std": [0.3] * 3}}, {"mean": [0.2] * 3, "std": [0.3] * 3}),
    ],
)  # fmt: skip
def test_preprocessing_is_the_models_own(folder, stored, expected):
    (folder / "preprocessor_config.json").write_text(json.dumps(stored))
    model = load(str(folder), img_size=48)
    found = model.pliant_identity.preprocess
    assert {key: found[key] for key in expected} == expected and found["size"] == 48
    assert "preprocessing" not in noted(model)


def test_missing_preprocessing_is_said(folder):
    assert "taken as 0.5" in noted(load(str(folder)))


def test_broken_preprocessing_is_an_error(folder):
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(PliantError, match="preprocessor_config.json: not readable as JSON"):
        load(str(folder))
