"""Sampling tasks on images: images of captions, captions of images, and both together."""

from typing import TYPE_CHECKING, Any, ClassVar

from mm_ldlm.pipelines.sampling.tasks import Columns, Task, held_out, text_rows

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.families.images.config import ImageTasksConfig
    from mm_ldlm.inference.api import MMLDLM


class ImageTask(Task):
    """Base of the tasks on images, which read the section `images.sampling`."""

    sections = ("sampling", "images")

    @property
    def own(self) -> "ImageTasksConfig":
        """Parameters of the tasks on images."""
        return self.parameters.images.sampling


class CaptionToImage(ImageTask):
    """Draw images of held-out captions."""

    columns: ClassVar[Columns] = {"id": "string", "source": "string", "image": "object", "model_calls": "int64"}

    def sample(self, model: "MMLDLM", dataset: "Dataset", *, seed: int) -> "list[pd.DataFrame]":
        held = held_out(self.sampling, dataset, seed)
        made = model.images.draw_tokens(held.tokens, held.texts, sampler=self.own.image, seed=seed)
        return [made.to_frame().assign(id=list(held.ids), source=list(held.texts))]


class ImageToCaption(ImageTask):
    """Write captions of held-out images."""

    columns: ClassVar[Columns] = {
        "id": "string", "source": "string", "text": "string", "tokens": "object", "length": "int64",
        "log_prob": "float64", "model_calls": "int64",
    }  # fmt: skip

    sampler_at, length_at = "images.sampling.caption", "images.sampling.length"
    fits_window = True

    def sample(self, model: "MMLDLM", dataset: "Dataset", *, seed: int) -> "list[pd.DataFrame]":
        from mm_ldlm.data.held_out import rows_of_ids

        held = held_out(self.sampling, dataset, seed)
        field = dataset.field("images")
        pixels = field.batch(rows_of_ids(dataset, list(held.ids))).reshape(len(held), *field.shape)
        made = model.images.caption(pixels, sampler=self.own.caption, length=self.own.length, seed=seed)
        return [text_rows(made, id=list(held.ids), source=list(held.texts))]


class ImageText(ImageTask):
    """Draw images and their captions together from noise."""

    columns: ClassVar[Columns] = {"text": "string", "image": "object", "model_calls": "int64"}

    inputs = ()

    def __init__(self, name: str, **sections: Any) -> None:
        super().__init__(name, **sections)
        self.length = "sample"

    def sample(self, model: "MMLDLM", dataset: "Dataset", *, seed: int) -> "list[pd.DataFrame]":
        return [model.images.generate(self.own.joint_count, steps=self.own.joint_steps, seed=seed).to_frame()]
