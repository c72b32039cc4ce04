"""Sampling tasks on given texts and pairs of texts; their parameters are in the section `sampling`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mm_ldlm.pipelines.sampling.tasks import TEXT_COLUMNS, Columns, Task, text_rows

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data.dataset import Dataset
    from mm_ldlm.inference import MMLDLM


class Infill(Task):
    """Fill the [MASK] positions of given texts, given the embeddings of other texts or without latents."""

    columns: ClassVar[Columns] = {"latent_of": "string", **TEXT_COLUMNS}
    inputs = ("sampling.infill.texts",)
    embeds, sampler_at = "sampling.infill.latents_of", "sampling.text"

    def __init__(self, name: str, **sections: Any) -> None:
        super().__init__(name, **sections)
        self.given = bool(self.sampling.infill.latents_of)
        self.use = "infill_given_latent" if self.given else self.name

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        own = self.sampling.infill
        latents = model.encode(list(own.latents_of)) if self.given else None
        made = model.infill(list(own.texts), latents=latents, sampler=self.sampling.text, seed=seed)
        return [text_rows(made, latent_of=list(own.latents_of) or None)]


class Edit(Task):
    """Rewrite a part of given texts, given the embeddings of target texts."""

    columns: ClassVar[Columns] = {"target": "string", "strength": "float64", **TEXT_COLUMNS}
    inputs = ("sampling.edit.sources",)
    embeds, sampler_at = "sampling.edit.targets", "sampling.text"

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        own = self.sampling.edit
        made = model.edit(
            list(own.sources), targets=list(own.targets), strength=own.strength, which=own.which,
            sampler=self.sampling.text, reembed=True, seed=seed,
        )  # fmt: skip
        targets = list(own.targets) * (len(own.sources) if len(own.targets) == 1 else 1)
        return [text_rows(made, target=targets, strength=own.strength)]


class Interpolate(Task):
    """Write texts between the embeddings of pairs of texts."""

    columns: ClassVar[Columns] = {"pair": "int64", "fraction": "float64", **TEXT_COLUMNS}
    inputs = ("sampling.interpolate.starts",)
    embeds, sampler_at, length_at = "sampling.interpolate.starts", "sampling.text", "sampling.length"

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        own = self.sampling.interpolate
        path = model.interpolate(
            list(own.starts), list(own.ends), steps=own.steps, path=own.path, sampler=self.sampling.text,
            length=self.sampling.length, reembed=True, seed=seed,
        )  # fmt: skip
        return [text_rows(path, pair=path.rows)]
