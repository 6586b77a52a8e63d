"""Every family and variant: stages equal the forward pass, parts cover every parameter once, wrappers fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pliant.anatomy import PARTS, BlockWrapper, family_of, find, first_trained, known_families, stages
from tests.anatomy.zoo import CLASSES, DEPTH, MODELS, WIDTH, build, forward, inputs, run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


class Scale(BlockWrapper):
    """Takes a block's place and scales what it returns."""

    def __init__(self, block: nn.Module, factor: float) -> None:
        super().__init__()
        self.block = block
        self.scale = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.scale.weight, factor)

    def after(self, tokens):
        return tokens * self.scale.weight[0]


def names_below(model: nn.Module, path: str) -> set[str]:
    return {name for name, _ in model.named_parameters() if name == path or name.startswith(path + ".")}


def wrap(model: nn.Module, path: str, factor: float) -> None:
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, Scale(model.get_submodule(path), factor))


@pytest.mark.parametrize("name", MODELS)
def test_stages_equal_the_forward_pass(name):
    model = build(name)
    for batch in (3, 1, 4):  # nothing may be carried from one batch to the next
        x = inputs(name, batch)
        assert torch.equal(run(stages(model), x), forward(model, x))


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_prefix_continues_in_a_fresh_model(name):
    x = inputs(name)
    cut = 2
    stored = run(stages(build(name))[:cut], x).clone()
    fresh = build(name)
    assert torch.equal(run(stages(fresh)[cut:], stored), forward(build(name), x))
    split = torch.cat([run(stages(fresh)[cut:], part) for part in stored.split(2)])
    assert torch.allclose(split, forward(build(name), x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_belongs_to_one_place(name):
    model = build(name)
    found = find(model)
    places = [*found.embed, *(block.path for block in found.blocks), *found.norm, *found.paths("head")]
    # Tied weights have one name: an output layer that shares the embedding's is listed there.
    owners = {name: [p for p in places if name in names_below(model, p)] for name, _ in model.named_parameters()}
    assert {name: own for name, own in owners.items() if len(own) != 1} == {}
    assert found.depth == DEPTH and found.width == WIDTH and found.heads == 2


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_a_block_are_disjoint_and_leave_only_layerscale(name):
    model = build(name)
    for block in find(model).blocks:
        parts = {part: set().union(*(names_below(model, path) for path in getattr(block, part))) for part in PARTS}
        assert all(parts.values()), "a part without parameters"
        everything = [parameter for part in parts.values() for parameter in part]
        assert len(everything) == len(set(everything))
        rest = names_below(model, block.path) - set(everything)
        assert all(any(word in p for word in ("gamma", "lambda", "layer_scale", ".ls1", ".ls2")) for p in rest), rest
        inside = set().union(*(names_below(model, path) for path in block.qkv + block.proj))
        assert block.qkv and block.proj and inside <= parts["mha"]
        assert set(block.read_directly) <= set(block.qkv)


@pytest.mark.parametrize("name", MODELS)
def test_positions_and_head_are_what_they_say(name):
    model = build(name)
    found = find(model)
    if found.positions:
        positions = model.get_parameter(found.positions)
        assert positions.shape[-1] == WIDTH and positions.shape[-2] >= 16
    if found.head and not name.endswith("-lm"):
        assert model.get_submodule(found.head).out_features == CLASSES


@pytest.mark.parametrize("name", MODELS)
def test_wrapped_blocks(name):
    x = inputs(name)
    model = build(name)
    plain = forward(model, x)
    for block in find(model).blocks:
        wrap(model, block.path, 1.0)
    assert torch.equal(forward(model, x), plain)
    found = stages(model)
    assert [stage.name for stage in found if "." in stage.name] == ["block.0", "after.0", "block.1", "after.1"]
    assert torch.equal(run(found, x), plain)
    first, second = (block.path.removesuffix("block") + "scale.weight" for block in find(model).blocks)
    assert found[first_trained(found, {second})].name == "after.1"
    nn.init.constant_(model.get_parameter(first), 1.5)
    assert torch.equal(run(stages(model), x), forward(model, x))
    assert not torch.equal(forward(model, x), plain)


@pytest.mark.parametrize("name", MODELS)
def test_lora_keeps_anatomy_and_stages(name):
    from peft import LoraConfig, inject_adapter_in_model

    x = inputs(name)
    model = build(name)
    plain, before = forward(model, x), find(model)
    modules = dict(model.named_modules())
    targets = [path for block in before.blocks for path in block.qkv if path in modules]
    inject_adapter_in_model(LoraConfig(r=2, target_modules=targets), model)
    assert find(model) == before
    fresh = forward(model, x)
    assert torch.equal(run(stages(model), x), fresh)
    # Not bit for bit: torch's MultiheadAttention (SigLIP's pooling) takes another path where nothing needs a gradient.
    assert torch.allclose(fresh, plain, rtol=0, atol=1e-6)
    for parameter, value in model.named_parameters():
        if ".lora_B." in parameter:
            nn.init.normal_(value)
    changed = forward(model, x)
    assert torch.equal(run(stages(model), x), changed)
    passed_over = any(block.read_directly for block in before.blocks)
    assert torch.equal(changed, fresh) is passed_over


def test_rotary_augmentation_is_off_while_blocks_run_alone():
    model = build("hf-dinov3-bare")
    x = inputs("hf-dinov3-bare")
    expected = forward(model, x)
    model.train()
    assert torch.equal(run(stages(model), x), expected)
    assert model.rope_embeddings.training


@pytest.mark.parametrize("name", ["timm-dynamic", "eva-dynamic", "hf-dinov3-bare"])
def test_other_image_sizes_where_the_model_takes_them(name):
    model = build(name)
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run(stages(model), x), forward(model, x))


@pytest.mark.parametrize("size", [32, 64])
def test_image_size_of_creation_is_respected(size):
    from timm.models.eva import Eva

    torch.manual_seed(0)
    options = {"patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": 2, "use_rot_pos_emb": True}
    model = Eva(img_size=(size, 32), **options).eval()
    x = torch.randn(2, 3, size, 32)
    assert torch.equal(run(stages(model), x), model(x))


def test_families_do_not_overlap():
    for name in MODELS:
        model = build(name)
        assert [family for family in known_families() if family.matches(model)] == [family_of(model)], name
