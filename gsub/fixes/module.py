"""A Python module that is not installed: the package that brings it. It is named, never installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gsub.fixes.paths import absolute
from gsub.fixes.values import Case, Fix, Fixer

__all__ = ["FIXER", "PACKAGES"]

PACKAGES: Final[Mapping[str, str]] = {
    "accelerate": "accelerate", "albumentations": "albumentations", "attr": "attrs",
    "bitsandbytes": "bitsandbytes",
    "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "datasets": "datasets", "dateutil": "python-dateutil",
    "deepspeed": "deepspeed", "diffusers": "diffusers", "dotenv": "python-dotenv", "einops": "einops",
    "evaluate": "evaluate", "flash_attn": "flash-attn", "flax": "flax", "gym": "gym", "gymnasium": "gymnasium",
    "h5py": "h5py", "huggingface_hub": "huggingface-hub", "hydra": "hydra-core", "jax": "jax", "jinja2": "Jinja2",
    "joblib": "joblib", "keras": "keras", "lightning": "lightning", "lmdb": "lmdb", "matplotlib": "matplotlib",
    "mpi4py": "mpi4py", "networkx": "networkx", "nltk": "nltk", "numba": "numba", "numpy": "numpy",
    "omegaconf": "omegaconf", "optuna": "optuna", "pandas": "pandas", "peft": "peft", "PIL": "pillow",
    "psutil": "psutil", "pyarrow": "pyarrow", "pytorch_lightning": "pytorch-lightning", "ray": "ray", "rdkit": "rdkit",
    "safetensors": "safetensors", "scipy": "scipy", "sentencepiece": "sentencepiece", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "tensorboard": "tensorboard", "tensorboardX": "tensorboardX",
    "tensorflow": "tensorflow",
    "tiktoken": "tiktoken", "timm": "timm", "tokenizers": "tokenizers", "torch": "torch",
    "torch_geometric": "torch-geometric",
    "torchaudio": "torchaudio", "torchmetrics": "torchmetrics", "torchvision": "torchvision", "tqdm": "tqdm",
    "transformers": "transformers", "triton": "triton", "trl": "trl", "vllm": "vllm", "wandb": "wandb",
    "webdataset": "webdataset", "xgboost": "xgboost", "yaml": "PyYAML", "zarr": "zarr",
}  # fmt: skip
"""Module to package on PyPI. A module that is not here is not guessed: anybody may have taken its name there."""

_MISSING: Final = re.compile(
    r"No module named (?P<quote>['\"]?)(?P<name>[A-Za-z_][\w.]*)(?P=quote)(?:$|[;,.\s])"
)


def _fix(case: Case) -> Fix | None:
    for line in case.evidence:
        found = _MISSING.search(line)
        if found is None:
            continue
        name = found["name"].split(".")[0]
        if "." in found["name"] or _is_own(name, case):
            return (
                None  # a part of a package that is there, or a file of the user's: it is no lack of a package
            )
        package = PACKAGES.get(name)
        if not package:
            return None
        return Fix(
            f"Install {package} in the environment that the job uses.",
            f"The Python of the job has no module {name}.",
            typed=(f"python3 -m pip install {package}",),
        )
    return None


def _is_own(name: str, case: Case) -> bool:
    return any(case.files.kind(absolute(own, case.folder)) for own in (name, f"{name}.py", f"src/{name}"))


FIXER: Final = Fixer(frozenset({"import_error"}), _fix)
