"""Shared fixtures: tiny models, and the data folder that some tests may use where it exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may wait for a network
settings.register_profile("pliant", deadline=None)  # a first call may import torch
settings.load_profile("pliant")


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("needs the shared data folder beside the repository")
    return SHARED


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Caches of a test go to a folder of its own."""
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path_factory.mktemp("cache")))


def tiny_vit(**changes):
    """A timm ViT with random weights: 4 blocks, width 64, 32 px."""
    import torch
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 5}
    return VisionTransformer(**{**options, **changes}).eval()


@pytest.fixture
def vit():
    return tiny_vit()
