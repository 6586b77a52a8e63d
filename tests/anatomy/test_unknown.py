"""A model of no known family: the error helps, and the lines that it shows work."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

from pliant.anatomy import find, registry, stages
from pliant.errors import PliantError


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return self.out((query @ key.mT).softmax(-1) @ value)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).relu())


class Patches(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).flatten(2).mT


class Own(nn.Module):
    """A Vision Transformer with names that only the error's example knows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = Patches(3, width, 4, 4)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.patches(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


@pytest.fixture
def own_registry(monkeypatch):
    registry.known_families()  # the built-in ones register first
    monkeypatch.setattr(registry, "_families", list(registry._families))


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), lambda: resnet(), nn.ModuleList])
def test_the_error_says_what_was_looked_for_and_found(make):
    model = make()
    with pytest.raises(PliantError) as caught:
        find(model)
    message = str(caught.value)
    assert message.startswith(f"{type(model).__name__} is of no known family. Found at its root: ")
    assert all(family.name in message and family.looks_for in message for family in registry.known_families())
    assert message.count("is of no known family") == 1 and "register(MyFamily())" in message
    found = [name for name, _ in model.named_children()]
    assert all(name in message for name in found) if found else "no submodules" in message


def resnet():
    import timm

    return timm.create_model("resnet18")


def test_the_lines_shown_register_a_working_family(own_registry):
    model = Own().eval()
    with pytest.raises(PliantError) as caught:
        find(model)
    shown = str(caught.value).partition("To teach pliant this family:\n\n")[2]
    lines = textwrap.dedent(shown).replace('("patches", "cls")', '("patches",)')
    lines = lines.replace('"pos", width=384', "None, width=16")
    exec(lines, {})
    found = find(model)
    assert found.family == "my-vit" and found.depth == 2 and found.paths("head") == ("head",)
    covered = {*found.embed, *found.norm, *found.paths("head"), *(block.path for block in found.blocks)}
    assert all(any(name.startswith(path + ".") for path in covered) for name, _ in model.named_parameters())
    x = torch.randn(2, 3, 16, 16)
    expected, value = model(x), x
    for stage in stages(model):
        value = stage.run(value)
    assert torch.equal(value, expected)
