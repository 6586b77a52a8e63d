"""Tiny random models of every family and variant, and how to compare their stages with their forward pass."""

from __future__ import annotations

import copy
from functools import cache, partial

import torch
from torch import nn

WIDTH, DEPTH, CLASSES = 32, 2, 5
_TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": 2, "num_classes": CLASSES}
_HF = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": CLASSES,
}


def _vit(**options):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(**{**_TIMM, **options})


def _distilled(**options):
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(**{**_TIMM, **options})


def _swiglu():
    from timm.layers import SwiGLUPacked

    return _vit(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5)


def _eva(**options):
    from timm.models.eva import Eva

    return Eva(**{**_TIMM, **options})


def _hf(class_name, config_name, **options):
    import transformers

    config = getattr(transformers, config_name)(**{**_HF, **options})
    return getattr(transformers, class_name)(config)


def _around_vision(class_name, config_name, **options):
    import transformers

    vision = {**_HF, **options}
    classes = vision.pop("num_labels")
    config = getattr(transformers, config_name)(vision_config=vision, num_labels=classes)
    return getattr(transformers, class_name)(config)


def _gpt2(class_name, **options):
    import transformers

    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=DEPTH, n_head=2, vocab_size=50, n_positions=24, num_labels=CLASSES, bos_token_id=48,
        eos_token_id=49, pad_token_id=49, **options,
    )  # fmt: skip
    return getattr(transformers, class_name)(config)


_DINOV3 = {"rope_type": "dinov3", "use_rot_pos_emb": True, "use_abs_pos_emb": False, "rope_rotate_half": True}
_EVA02 = {"use_rot_pos_emb": True, "swiglu_mlp": True, "qkv_fused": False, "scale_mlp": True}
_DEIT = partial(_hf, config_name="DeiTConfig")

MODELS = {
    "timm-vit": _vit,
    "timm-layerscale": partial(_vit, init_values=1e-5),
    "timm-reg4": partial(_vit, reg_tokens=4, no_embed_class=True, init_values=1e-5),
    "timm-qknorm": partial(_vit, qk_norm=True),
    "timm-inner-norms": partial(_vit, scale_attn_norm=True, scale_mlp_norm=True),
    "timm-avg-fcnorm": partial(_vit, global_pool="avg"),
    "timm-map": partial(_vit, global_pool="map", class_token=False),
    "timm-clip": partial(_vit, pre_norm=True),
    "timm-dynamic": partial(_vit, dynamic_img_size=True),
    "timm-headless": partial(_vit, num_classes=0),
    "timm-swiglu": _swiglu,
    "timm-distilled": _distilled,
    "eva-plain": _eva,
    "eva02": partial(_eva, **_EVA02),
    "eva02-inner-norm": partial(_eva, **{**_EVA02, "scale_attn_inner": True, "global_pool": "token"}),
    "eva02-packed": partial(_eva, use_rot_pos_emb=True, swiglu_mlp=True, rope_grid_offset=0.5, ref_feat_shape=8),
    "eva-layerscale": partial(_eva, init_values=1e-5),
    "eva-postnorm": partial(_eva, use_post_norm=True),
    "eva-map": partial(_eva, global_pool="map"),
    "eva-attn-rope": partial(_eva, attn_type="rope", use_rot_pos_emb=True, qk_norm=True),
    "eva-mixed": partial(_eva, attn_type="rope", use_rot_pos_emb=True, rope_type="mixed"),
    "eva-dynamic": partial(_eva, use_rot_pos_emb=True, dynamic_img_size=True),
    "dinov3": partial(_eva, **_DINOV3, num_reg_tokens=4, init_values=1e-5, qkv_bias=False, use_fc_norm=False),
    "dinov3-swiglu": partial(_eva, **_DINOV3, num_reg_tokens=4, swiglu_mlp=True, swiglu_align_to=8, init_values=1.0),
    "hf-vit": partial(_hf, "ViTForImageClassification", "ViTConfig"),
    "hf-vit-bare": partial(_hf, "ViTModel", "ViTConfig"),
    "hf-vit-eager": partial(_hf, "ViTForImageClassification", "ViTConfig", attn_implementation="eager"),
    "hf-deit": partial(_DEIT, "DeiTForImageClassification"),
    "hf-deit-distilled": partial(_DEIT, "DeiTForImageClassificationWithTeacher"),
    "hf-deit-bare": partial(_DEIT, "DeiTModel"),
    "hf-dinov2": partial(_hf, "Dinov2ForImageClassification", "Dinov2Config"),
    "hf-dinov2-bare": partial(_hf, "Dinov2Model", "Dinov2Config"),
    "hf-dinov2-giant": partial(_hf, "Dinov2ForImageClassification", "Dinov2Config", use_swiglu_ffn=True),
    "hf-dinov2-registers": partial(_hf, "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig"),
    "hf-dinov2-registers-bare": partial(_hf, "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
    "hf-dinov3-bare": partial(_hf, "DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=4),
    "hf-dinov3-gated": partial(_hf, "DINOv3ViTModel", "DINOv3ViTConfig", use_gated_mlp=True),
    "hf-clip": partial(_around_vision, "CLIPForImageClassification", "CLIPConfig"),
    "hf-clip-bare": partial(_hf, "CLIPVisionModel", "CLIPVisionConfig"),
    "hf-siglip": partial(_around_vision, "SiglipForImageClassification", "SiglipConfig"),
    "hf-siglip-bare": partial(_hf, "SiglipVisionModel", "SiglipVisionConfig"),
    "hf-beit": partial(_hf, "BeitForImageClassification", "BeitConfig", use_relative_position_bias=True),
    "hf-beit-shared": partial(_hf, "BeitForImageClassification", "BeitConfig", use_shared_relative_position_bias=True),
    "hf-beit-absolute": partial(
        _hf, "BeitForImageClassification", "BeitConfig", use_absolute_position_embeddings=True, use_mean_pooling=False
    ),
    "hf-beit-bare": partial(_hf, "BeitModel", "BeitConfig", use_relative_position_bias=True),
    "gpt2": partial(_gpt2, "GPT2Model"),
    "gpt2-eager": partial(_gpt2, "GPT2Model", attn_implementation="eager"),
    "gpt2-lm": partial(_gpt2, "GPT2LMHeadModel"),
    "gpt2-classifier": partial(_gpt2, "GPT2ForSequenceClassification"),
}


def build(name: str) -> nn.Module:
    """The model, in eval mode, with every parameter random: constants (zero tokens, unit gammas) hide mistakes."""
    return copy.deepcopy(_built(name))


@cache
def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def inputs(name: str, batch: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    if name.startswith("gpt2"):
        return torch.randint(0, 48, (batch, 9), generator=generator)
    return torch.randn(batch, 3, 32, 32, generator=generator)


def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What the model itself says: its logits, or what a bare model pools."""
    found = model(x)
    if isinstance(found, torch.Tensor):
        return found
    for key in ("logits", "pooler_output"):
        if found.get(key) is not None:
            return found[key]
    return found["last_hidden_state"]


def run(stages, x: torch.Tensor) -> torch.Tensor:
    for stage in stages:
        x = stage.run(x)
    return x
