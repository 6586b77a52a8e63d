"""What a run has to say of itself, as data: everything that its report and studies are made from."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

import pliant
from pliant import anatomy, backbone
from pliant.adapt import learned
from pliant.adapt.settings import LIBRARIES
from pliant.adapt.shelf import Cached
from pliant.methods import adaptation_of

if TYPE_CHECKING:
    from pliant.adapt.checkpoint import Position
    from pliant.adapt.features import Inputs
    from pliant.adapt.job import Job


def summary(job: Job, train: Inputs, position: Position, result: dict[str, Any], command: str) -> dict[str, Any]:
    """The content of summary.json. `result` holds the metrics of each part."""
    chosen, identity = job.settings, backbone.identity_of(job.model)
    kept = train if isinstance(train, Cached) else None
    file = job.folder / "learned" / learned.WEIGHTS
    return {
        "pliant": pliant.__version__,
        "command": command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(job.accelerator.device),
        "data": {
            "spec": job.splits.spec,
            "classes": list(job.splits.train.classes),
            **{name: len(part) for name, part in job.splits.parts().items()},
            "notes": job.splits.notes,
            "skipped": job.splits.skipped,
        },
        "model": {
            "name": identity.name,
            "weights": identity.weights,
            "fingerprint": adaptation_of(job.model).fingerprint,
            "img_size": identity.img_size,
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "family": anatomy.find(job.model).family,
        },
        "method": {"name": chosen.method, **job.plan.options.model_dump(), "blocks": chosen.blocks},
        "plan": [asdict(row) for row in job.plan.rows],
        "training": {
            "epochs": chosen.epochs,
            "steps": position.step,
            "best_epoch": position.best_epoch,
            "seconds": round(position.seconds, 2),
            "images_per_second": round(len(train.labels) * int(chosen.epochs or 0) / max(position.seconds, 1e-9), 1),
            "lr": chosen.lr,
            "head_lr": chosen.head_lr,
            "batch_size": chosen.batch_size,
            "memory_mb": job.memory.parts(),
            "cache": {
                "stages": f"{job.plan.prefix[0]} to {job.plan.prefix[-1]}" if kept and job.plan.prefix else "",
                "bytes": kept.nbytes if kept else 0,
                "where": kept.where if kept else "none",
            },
        },
        **result,
        "gap": result["train"]["top1"] - result["test"]["top1"],
        "learned_bytes": file.stat().st_size,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """What a result may depend on besides its settings."""
    return {
        "python": platform.python_version(),
        **{library: version(library) for library in LIBRARIES},
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "platform": f"{platform.system()} {platform.machine()}",
    }
