"""The folder of an exported run for Hugging Face: the files of every exported run, the encoder, and a model card.

sentence-transformers imports classes outside its own package only with `trust_remote_code=True`, so the part that
`SentenceTransformer(FOLDER)` loads is the encoder of the run, by modules of that library.
"""

import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np

from mm_ldlm.core import EncoderError, MMLDLMError, foreign_code
from mm_ldlm.core.files import InputFile, write_json, write_text
from mm_ldlm.data.encoders.base import load_encoder, parse_encoder
from mm_ldlm.data.encoders.local import LocalEncoderConfig, deciding_files
from mm_ldlm.data.encoders.specs import LocatedWeights
from mm_ldlm.extras.huggingface.card import card
from mm_ldlm.inference.exporting import Source, export
from mm_ldlm.inference.loading import ENCODER

MODULES = "modules.json"
"""File of sentence-transformers that names the modules of a model"""
FAR = 0.03
"""Largest relative distance between the vectors of `SentenceTransformer(FOLDER)` and of the encoder, for these texts"""
TEXTS = ("A short text.", "The girl drew a horse in the garden, and the boy watched her.", "word " * 600)


def write_folder(
    source: Source, target: Path, *, licence: str = "unknown", notes: str = "", without_encoder: bool = False
) -> list[str]:
    """Write the folder; return messages for the user.

    Args:
        notes: end of the card, in Markdown.

    Raises:
        CheckpointError: it cannot be written.
    """
    documents, messages = dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary)
        if not without_encoder:
            try:
                documents = stage_encoder(source, stage)
            except MMLDLMError as error:
                messages = [f"SentenceTransformer cannot load it: {error}"]
        export(source, target, folders={ENCODER: stage / ENCODER} if documents else {}, documents=documents)
    made = card(source, name=target.name, licence=licence, notes=notes, embeds=bool(documents))
    write_text(target / "README.md", made)
    return messages


def stage_encoder(source: Source, stage: Path) -> dict[str, Any]:
    """Put links to the files of the encoder into `stage`/`ENCODER`; return the files of sentence-transformers for it.

    Raises:
        MMLDLMError: the run has no encoder whose vectors sentence-transformers computes from files without pickles.
    """
    config = parse_encoder(source.config["encoder"]) if source.config.get("encoder") else None
    if not isinstance(config, LocalEncoderConfig):
        raise EncoderError("the run has no encoder with weights on this machine.")
    encoder = load_encoder(config, device="cpu", expected=source.config["fingerprints"]["encoder"])
    located = cast(LocatedWeights, encoder.located)
    files, spec = deciding_files(located.folder), located.spec
    if not (located.folder / MODULES).is_file() or any(file.suffix == ".bin" for file in files):
        raise EncoderError(f"the encoder in {located.folder} is not a sentence-transformers model in safetensors.")
    for file in files:
        link = stage / ENCODER / file.relative_to(located.folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    modules = InputFile(located.folder / MODULES, remedy="", error=EncoderError).json(list[dict[str, Any]])
    prompt = {"prompts": {"text": spec.prompt}, "default_prompt_name": "text"} if spec.prompt else {}
    settings = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine", **prompt}
    documents = {
        MODULES: [{**module, "path": f"{ENCODER}/{module['path']}".rstrip("/")} for module in modules],
        "config_sentence_transformers.json": {**settings, "truncate_dim": located.truncate_dim},
    }
    for name, document in documents.items():
        write_json(stage / name, document)
    from sentence_transformers import SentenceTransformer

    expected_nd = encoder.encode(TEXTS)
    with foreign_code(lambda reason: EncoderError(f"sentence-transformers cannot load the encoder ({reason}).")):
        found_nd = SentenceTransformer(str(stage), device="cpu", local_files_only=True).encode(list(TEXTS))
    if found_nd.shape != expected_nd.shape or (
        np.linalg.norm(found_nd - expected_nd) > FAR * np.linalg.norm(expected_nd)
    ):
        raise EncoderError("sentence-transformers computes other vectors from the files of the encoder.")
    return documents
