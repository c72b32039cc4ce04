"""Tasks of the sampling pipeline: their interface, and the tasks on texts and latents."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from mm_ldlm.data import held_out as sentences
from mm_ldlm.data.encoders.base import no_encoder
from mm_ldlm.inference.files import read_texts
from mm_ldlm.pipelines.sampling import TASKS

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.inference.api import MMLDLM
    from mm_ldlm.objectives.capabilities import Capabilities
    from mm_ldlm.pipelines.sampling.config import SamplingConfig

log = logging.getLogger(__name__)

Columns = Mapping[str, str]
"""Column of a table → its type"""
TEXT_COLUMNS = {
    "source": "string", "text": "string", "tokens": "object", "length": "int64", "log_prob": "float64",
    "model_calls": "int64", "encoder_calls": "int64", "cosine": "float64",
}  # fmt: skip
NEIGHBOUR_CANDIDATES = 50_000
"""Number of training sentences among which the nearest neighbour of a sample is searched."""


class Task(ABC):
    """A task of the sampling pipeline with its parameters. Its table is saved as `samples_{name}`.

    The docstring of a subclass describes its node in the graph. Parameters are named by their paths, "sampling.text".

    Attributes:
        name: name of the task in the registry.
        columns: the types of the columns of the table.
        sections: top-level sections of the parameters that the task reads; the constructor takes them by name.
        inputs: parameters of which one must be set, so that there is something to sample; (): none.
        embeds: the parameter whose texts the encoder embeds; "": none.
        sampler_at: the parameter of the sampler that writes texts; "" for a task that writes none.
        length_at: the parameter of their length; "" for a task that chooses no lengths.
        use: use of the run that the task needs (`objectives.capabilities.USES`); the name of the task, if not set.
        order: order in which a text and its latent are generated; "" for tasks without one.
        given: whether texts are written given latents, or data of another kind.
        length: length of the texts; None for a task that chooses no lengths.
        fits_window: whether the texts must fit the model, whatever the sampler could write.
    """

    columns: ClassVar[Columns]
    sections: ClassVar[tuple[str, ...]] = ("sampling",)
    inputs: ClassVar[tuple[str, ...]] = ("sampling.rows",)
    embeds: ClassVar[str] = ""
    sampler_at: ClassVar[str] = ""
    length_at: ClassVar[str] = ""
    fits_window: ClassVar[bool] = False

    def __init__(self, name: str, **sections: Any) -> None:
        self.name = name
        self.parameters = SimpleNamespace(**sections)
        self.sampling: SamplingConfig = self.parameters.sampling
        self.use, self.order, self.given = name, "", True
        self.length: str | int | None = self.value(self.length_at)

    def value(self, path: str) -> Any:
        """Return the value of a parameter; None for the path ""."""
        return attrgetter(path)(self.parameters) if path else None

    @property
    def has_input(self) -> bool:
        """Whether the parameters contain an input for the task."""
        return not self.inputs or any(self.value(path) for path in self.inputs)

    @property
    def requested(self) -> bool:
        """Whether the task takes place if the run supports it."""
        return self.has_input if self.sampling.tasks is None else self.name in self.sampling.tasks

    def refusal(self, capabilities: Capabilities) -> str | None:
        """Explain why a run does not support the task; None if it does."""
        return capabilities.task_refusal(self.use, order=self.order, length=self.length)

    @abstractmethod
    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        """Return the rows of the table, in one or more parts; columns that are left out are empty."""


def task_of(name: str, sections: Mapping[str, Any]) -> Task:
    """Make a task with its parameters, from the typed sections by name."""
    kind = TASKS.load(name)
    return kind(name, **{section: sections[section] for section in kind.sections})


def problems(sections: Mapping[str, Any]) -> list[str]:
    """List the parameters of the tasks that the run cannot fulfil, with the reason of each."""
    capabilities = sections["objective"].capabilities(sections["model"])
    chosen, found = sections["sampling"].tasks, dict[str, str | None]()
    for name in TASKS if chosen is None else chosen:
        task = task_of(name, sections)
        reason = task.refusal(capabilities)
        if reason is None and not task.has_input:
            reason = f"it has no input: set {' or '.join(task.inputs)}."
        if reason is not None and chosen is not None:
            found[f"sampling.tasks[{chosen.index(name)}]"] = (
                f"'{name}' is listed, but {reason} Remove the task, or set sampling.tasks to null, which stands for "
                "every task that the run supports."
            )
        if reason is not None:
            continue
        if task.value(task.embeds) and (reason := no_encoder(sections["encoder"])) is not None:
            found[task.embeds] = f"the encoder embeds these texts, but {reason}"
        sampler = task.value(task.sampler_at)
        if hasattr(sampler, "refusal"):  # it writes tokens
            refused = capabilities.sampler_refusal(sampler, task.use, given_latent=task.given)
            found[task.sampler_at] = found.get(task.sampler_at) or refused
        fits = task.fits_window or (task.order in ("text_first", "together") and bool(capabilities.joint_orders))
        too_long = capabilities.length_refusal(
            task.length, task.use, order=task.order, max_length=sections["tokenizer"].max_length,
            sampler=None if fits else sampler,
        )  # fmt: skip
        found[task.length_at] = found.get(task.length_at) or too_long
    return [f"parameter '{at}': {reason}" for at, reason in found.items() if reason is not None]


# --- the tasks --------------------------------------------------------------------------------------------------------


class L2t(Task):
    """Invert held-out latents, `.npy` files and given texts; `cosine` is the re-embedded text's.

    `sample` numbers the texts of one latent, and `best` marks the one with the highest cosine. Without an encoder,
    there is neither a search nor a cosine.
    """

    columns: ClassVar[Columns] = {"id": "string", "origin": "string", **TEXT_COLUMNS, "sample": "int64", "best": "bool"}
    inputs = ("sampling.rows", "sampling.l2t.files", "sampling.l2t.texts")
    embeds, sampler_at, length_at = "sampling.l2t.texts", "sampling.text", "sampling.length"

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        config, own = self.sampling, self.sampling.l2t
        embeds = model.no_encoder is None
        if not embeds:
            log.info("task 'l2t' runs without search and re-embedding: %s", model.no_encoder)
        how: dict[str, Any] = {
            "sampler": config.text, "length": config.length, "search": config.search if embeds else None,
            "reembed": embeds, "seed": seed, "samples": own.samples, "keep": "all",
        }  # fmt: skip
        parts = []
        if config.rows:
            held = held_out(self.sampling, dataset, seed)
            made = model.invert(held.latents, **how)
            rows = range(len(held)) if made.rows is None else made.rows
            ids, texts = [held.ids[i] for i in rows], [held.texts[i] for i in rows]
            parts.append(text_rows(made, id=ids, origin=config.split, source=texts))
        given: list[tuple[str, Any]] = [(file, Path(file)) for file in own.files]
        given += [("texts", list(own.texts))] if own.texts else []
        parts += [text_rows(model.invert(value, **how), id=None, origin=origin) for origin, value in given]
        return [part if "sample" in part else part.assign(sample=0, best=True) for part in parts]


class T2l(Task):
    """Sample latents of held-out and given texts; `cosine` is to the encoder's vector, if the store contains it."""

    columns: ClassVar[Columns] = {
        "id": "string", "origin": "string", "source": "string", "latent": "object", "model_calls": "int64",
        "cosine": "float64",
    }  # fmt: skip
    inputs = ("sampling.rows", "sampling.t2l.files", "sampling.t2l.texts")

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        from mm_ldlm.data.latents.recognition import cosines_of

        config, own, parts = self.sampling, self.sampling.t2l, []
        if config.rows:
            held = held_out(self.sampling, dataset, seed)
            made = model.embed(held.texts, ids=held.tokens, sampler=config.latent, seed=seed)
            cosine_n = cosines_of(made.latents, held.latents)
            parts.append(made.to_frame().assign(id=list(held.ids), origin=config.split, cosine=cosine_n))
        given = [(file, read_texts(file)) for file in own.files]
        given += [("texts", list(own.texts))] if own.texts else []
        for origin, texts in given:
            parts.append(model.embed(texts, sampler=config.latent, seed=seed).to_frame().assign(id=None, origin=origin))
        return parts


class Unconditional(Task):
    """Generate texts from noise, with their latents if the run generates latents.

    The table contains the training sentence whose latent is nearest to the latent of each text.
    """

    columns: ClassVar[Columns] = {
        "text": "string", "tokens": "object", "length": "int64", "log_prob": "float64", "model_calls": "int64",
        "latent": "object", "neighbour": "string", "neighbour_cosine": "float64",
    }  # fmt: skip
    inputs = ()
    sampler_at, length_at = "sampling.unconditional.text", "sampling.unconditional.length"

    def __init__(self, name: str, **sections: Any) -> None:
        super().__init__(name, **sections)
        self.order = self.sampling.unconditional.order
        self.given = self.order == "latent_first"

    def sample(self, model: MMLDLM, dataset: Dataset, *, seed: int) -> list[pd.DataFrame]:
        own = self.sampling.unconditional
        made = model.generate(
            own.count, order=own.order, sampler=own.text, latent_sampler=own.latent, length=own.length, seed=seed
        )
        if made.latents is None:
            return [text_rows(made, latent=None)]
        frame = text_rows(made, latent=list(made.latents))
        if self.sampling.neighbours:
            rows = sentences.sample_rows(sentences.split_rows(dataset, "train"), NEIGHBOUR_CANDIDATES, seed=seed)
            found = model.neighbours(made.latents, dataset.require("latents").take(rows), k=1)
            nearest = dataset.records.table(rows[found.rows[:, 0]]).column("text").to_pylist()
            frame = frame.assign(neighbour=nearest, neighbour_cosine=found.cosines[:, 0])
        return [frame]


# --- rows -------------------------------------------------------------------------------------------------------------


def held_out(sampling: SamplingConfig, dataset: Dataset, seed: int) -> sentences.Sentences:
    """Draw the examples of the split that the tasks share."""
    return sentences.held_out(dataset, count=sampling.rows, seed=seed, split=sampling.split)


def text_rows(made: Any, **more: Any) -> pd.DataFrame:
    """Convert a result to a table with its tokens and further columns, without the latents of the condition."""
    frame: pd.DataFrame = made.to_frame().drop(columns="latent", errors="ignore")
    frame["tokens"] = [list(row) for row in made.tokens]
    return frame.assign(**more)
