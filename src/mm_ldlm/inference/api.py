"""MMLDLM: the Python interface of a trained model.

Latents in arguments and results are *raw*: the encoder's vectors, as stores and `.npy` files contain them. Internally
they are standardised.
"""

from pathlib import Path
from typing import Any, Self

import torch

from mm_ldlm.core import Precision, Registry
from mm_ldlm.inference.exporting import pretrained_folder
from mm_ldlm.inference.loading import load_run
from mm_ldlm.inference.model import Encoder, LoadedModel
from mm_ldlm.inference.requests import embedding, generation, likelihood
from mm_ldlm.inference.requests.neighbours import neighbours

REQUESTS = Registry(what="request", core={}, group="requests")
"""Methods and properties that families and other packages add to `MMLDLM`: functions whose first argument is the model,
and properties."""


class MMLDLM(LoadedModel):
    """Trained model that embeds, inverts, generates and scores texts; extras and families add further requests.

    `MMLDLM.from_run(path)` loads it from a run folder; `capabilities` lists the supported uses. Samplers are chosen by
    kind or by their configuration. The `seed` and the position of a text in the request determine its sample, for any
    batching. Methods that re-embed texts, or receive texts in place of latents, need the encoder; these
    receive the path of a `.npy` file of latents as well.

    See `LoadedModel` for the arguments of the constructor.
    """

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        checkpoint: str | int = "latest",
        use_ema: bool = True,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        batch_tokens: int | None = None,
    ) -> Self:
        """Load a trained model from a run folder.

        Args:
            path: a run folder, one of its checkpoints, or a folder of runs, of which the newest is used.
            encoder: the encoder; None loads the encoder named in the run's config.json when it is first needed.
            checkpoint: "latest", "best", a step, or the name of a checkpoint folder ("step-00001000").
            use_ema: use the averaged weights (EMA) instead of the last ones.
            device: the device; None is the first GPU if there is one, otherwise the CPU.
            precision: of sampling: fp32, bf16, or auto, which is bf16 if the device is faster with it. With bf16 a
                sample may depend on the others of its batch.

        Raises:
            CheckpointError: the folder has no complete checkpoint, files that a model needs are missing or damaged, or
                the weights do not fit the model that config.json describes.
        """
        parts = load_run(path, checkpoint=checkpoint, use_ema=use_ema, device=device, precision=precision)
        return cls(parts, encoder, batch_tokens=batch_tokens)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, **options: Any) -> Self:
        """Load a model of the package by its name, or an exported run: a folder, or owner/name of the Hugging Face hub.

        A folder that has the name of a model of the package is given with its path: `./minilm-english`.

        The digests of all files are compared; no code and no pickle of the folder is executed.

        Args:
            revision: branch, tag or commit on the hub.
            options: as of `from_run`.

        Raises:
            CheckpointError: there is no such folder or repository, or a file is missing or damaged.
        """
        return cls.from_run(pretrained_folder(name, revision=revision), **options)

    invert = generation.invert
    generate = generation.generate
    embed = embedding.embed
    encode = embedding.encode
    neighbours = neighbours
    score = likelihood.score

    def __getattr__(self, name: str) -> Any:
        """Find a request that a family or another package adds (`REQUESTS`)."""
        if name.startswith("_") or name not in REQUESTS:
            raise AttributeError(f"'MMLDLM' object has no attribute {name!r}")
        return REQUESTS.load(name).__get__(self, type(self))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *REQUESTS})
