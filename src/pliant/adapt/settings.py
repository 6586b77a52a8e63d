"""All settings of a run, strict: an unknown or contradictory one is an error before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pliant.errors import PliantError

LIBRARIES = ("torch", "timm", "transformers", "peft")
"""Libraries whose version is stored with what was learned, since they name the modules."""


TRAINING = (
    "balanced", "augment", "views", "epochs", "batch_size", "micro_batch", "optimizer", "lr", "head_lr", "weight_decay",
    "warmup", "clip", "label_smoothing", "mixup", "cutmix",
)  # fmt: skip
"""Settings of training by steps."""


class Settings(BaseModel):
    """What `pliant adapt` takes. None means: the method's own default, filled in by `resolve` before the run starts."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    # what
    data: str
    model: str = "pico"
    weights: str | None = None
    random_init: bool = False
    img_size: int | None = Field(default=None, gt=0)
    method: str = "adapter"
    blocks: str = "all"
    rank: int | None = None
    alpha: float | None = None
    every: int | None = None
    init: Literal["zero", "small"] | None = None
    targets: str | None = None
    out: str | None = None
    seed: int = Field(default=0, ge=0)
    # data
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    limit_train: int | None = Field(default=None, gt=0)
    limit_val: int | None = Field(default=None, gt=0)
    limit_test: int | None = Field(default=None, gt=0)
    max_corrupt: float = Field(default=0.01, ge=0, le=1)
    balanced: bool = False
    augment: Literal["none", "flip", "crop"] = "none"
    views: int | None = Field(default=None, gt=0)
    # training
    epochs: int | None = Field(default=None, gt=0)
    batch_size: int = Field(default=32, gt=0)
    micro_batch: int | None = Field(default=None, gt=0)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float | Literal["auto"] | None = None
    head_lr: Annotated[float, Field(gt=0)] | Literal["same"] | None = None
    weight_decay: float | None = Field(default=None, ge=0)
    warmup: float | None = Field(default=None, ge=0, lt=1)
    clip: float = Field(default=1.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    mixup: float = Field(default=0.0, ge=0)
    cutmix: float = Field(default=0.0, ge=0)
    # machine
    cache: Literal["auto", "memory", "file", "off"] = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    checkpoint_minutes: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        if isinstance(self.lr, float) and self.lr <= 0:
            raise ValueError(f"lr {self.lr} must be positive")
        if self.views and self.augment == "none":
            raise ValueError("views needs an augmentation; give --augment flip or crop, or leave --views out")
        if self.cache in ("memory", "file") and not self.cacheable:
            raise ValueError(
                "fresh augmentation or mixing cannot be cached; give --views K fixed views, or --cache auto"
            )
        return self

    @property
    def cacheable(self) -> bool:
        """Is every training image, as the model sees it, one of a few fixed ones? Mixing happens on pixels anew."""
        return not self.mixup and not self.cutmix and (self.augment == "none" or self.views is not None)

    def method_options(self) -> dict[str, Any]:
        """The method's own options among the settings, where given."""
        targets = tuple(t.strip() for t in self.targets.split(",")) if self.targets else None
        found = {"rank": self.rank, "alpha": self.alpha, "every": self.every, "init": self.init, "targets": targets}
        return {name: value for name, value in found.items() if value is not None}


def settings(**given: Any) -> Settings:
    """Settings from keyword arguments; raises PliantError with one line that names the option."""
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            raise PliantError(f"unknown setting {first['loc'][0]!r}") from error
        if not first["loc"]:
            raise PliantError(first["msg"].removeprefix("Value error, ")) from error
        option = str(first["loc"][0]).replace("_", "-")
        raise PliantError(f"--{option} {first['input']!r}: {first['msg']}") from error


def read_settings(path: Path) -> Settings:
    """The settings that a run folder's `run.yaml` holds."""
    import yaml

    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PliantError(f"{path}: no such file, so {path.parent} is no run folder") from None
    except yaml.YAMLError as error:
        raise PliantError(f"{path}: not readable as YAML ({error})") from error
    if not isinstance(stored, dict) or "data" not in stored:
        raise PliantError(f"{path}: holds no settings of a run")
    return settings(**stored)


def settings_yaml(chosen: Settings) -> str:
    import yaml

    return yaml.safe_dump(chosen.model_dump(), sort_keys=False, allow_unicode=True)
