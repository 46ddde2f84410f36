"""`python -m tests.models.all [PATTERN]`: every classifier of torchvision and every small model of timm, one by one.

Takes an hour or more. Each is trained and resumed in this process on the smallest images of a few that it takes.
"""

from __future__ import annotations

import fnmatch
import sys
import tempfile
from pathlib import Path

import torch
import torchvision

from tests.models.zoo import Case, train_all

SIZES = (32, 64, 75, 128, 224, 240, 256, 288, 299, 384, 448)
MOST_PARAMETERS = 60e6


def main(pattern: str) -> int:
    failed = {}
    for name in (*torchvision_names(), *timm_names()):
        if not fnmatch.fnmatch(name, pattern):
            continue
        told = ""
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                found = train_all(Path(folder), [Case(name, size)])
            told = found.get(name, "")
            if "does not fit images" not in told:
                break
        if told:
            failed[name] = told
            print(f"FAILED {name}: {told}", flush=True)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


def torchvision_names() -> list[str]:
    return list(torchvision.models.list_models(module=torchvision.models))


def timm_names() -> list[str]:
    import timm

    found = []
    for name in timm.list_models():
        with torch.device("meta"):
            num = sum(p.numel() for p in timm.create_model(name).parameters())
        if num <= MOST_PARAMETERS:
            found.append(f"timm:{name}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "*"))
