"""Parameters of the sampling pipeline: tasks, samplers and search."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal, get_args

from mm_ldlm.core.config import (
    CheckpointName,
    Device,
    Fraction,
    InvalidValue,
    NonNegativeFloat,
    PositiveFloat,
    Repeats,
    Rows,
    RowsOrNone,
    config,
)
from mm_ldlm.sampling.gaussian import DdimConfig, GaussianSampler
from mm_ldlm.sampling.lengths import how_many_lengths
from mm_ldlm.sampling.limits import Candidates, Rounds, Steps, refuse_temperature
from mm_ldlm.sampling.registry import CAPTION_SAMPLERS, LATENT_SAMPLERS, TEXT_SAMPLERS

JointOrder = Literal["together", "latent_first", "text_first"]
Keep = Literal["best", "all"]
"""Which of several texts for one latent are kept"""


def refuse_samplers(order: JointOrder, text: Any, latent: Any) -> None:
    """Raise ValueError if the samplers do not fit the order in which texts and latents are generated."""
    if order != "text_first" and latent.draws > 1:
        raise InvalidValue(
            f"latent.draws is {latent.draws}, but in the order '{order}' each draw is the latent of a different "
            "sentence, and their mean is the latent of no sentence: set draws to 1",
            "latent.draws",
            "order",
        )
    if order != "together":
        return
    both = getattr(latent, "steps", None)
    expected = {"kind": ("ancestral", "ddim"), "steps": (both, both), "guidance": (1.0, 1.0)}
    for key, values in expected.items():  # the kind first: other kinds need not have the other keys
        for name, sampler, value in zip(("text", "latent"), (text, latent), values, strict=True):
            found = getattr(sampler, key)
            if found != value:
                raise InvalidValue(
                    f"the order 'together' takes ancestral steps in the text and as many DDIM steps in the latent, "
                    f"without guidance: expected {name}.{key} {value!r}, found {found!r}",
                    f"{name}.{key}",
                    "order",
                )


@config
class SearchConfig:
    """Parameters of the search, which re-embeds candidates and compares them with the target. Counts are per target."""

    candidates: Candidates = 1
    """Number of candidates at the start (K), and of children in each round"""
    rounds: Rounds = 0
    """Number of rounds, in which the least confident tokens are masked again and rewritten"""
    beam: Candidates = 1
    """Number of candidates kept from round to round"""
    remask_ratio: Fraction = 0.4
    """Fraction of a candidate's tokens that a child draws again"""
    remask_noise: NonNegativeFloat = 1.0
    """Scale of the Gumbel noise (nats) on the log-probabilities that rank the tokens; 0 always masks the same tokens"""
    resize: Fraction = 0.0
    """Fraction of the children that are one token longer or shorter than their parent, at its least confident token"""
    lengths: Repeats = 1
    """Number of the most probable lengths among which the starting candidates are divided"""
    temperature: NonNegativeFloat = 0.7
    """Temperature of all candidates but the first, which uses the temperature of the text sampler"""
    good_enough: PositiveFloat = 0.9999
    """Cosine at which the search for a target ends"""

    def __post_init__(self) -> None:
        refuse_temperature(self.temperature)

    @property
    def enabled(self) -> bool:
        """Whether a search takes place."""
        return self.candidates > 1 or self.rounds > 0


# --- tasks of the pipeline --------------------------------------------------------------------------------------------

Task = Literal[
    "l2t", "t2l", "unconditional", "infill", "edit", "interpolate", "caption_to_image", "image_to_caption", "image_text"
]  # fmt: skip
TASKS: tuple[Task, ...] = get_args(Task)
_INPUTS: dict[Task, str] = {
    "l2t": "rows, l2t.files or l2t.texts",
    "t2l": "rows, t2l.files or t2l.texts",
    "infill": "infill.texts",
    "edit": "edit.sources",
    "interpolate": "interpolate.starts",
    "caption_to_image": "rows",
    "image_to_caption": "rows",
}


@config
class L2tConfig:
    """Additional inputs of l2t (texts from latents), besides the held-out sentences."""

    files: tuple[str, ...] = ()
    """`.npy` files of raw latents (n, d)"""
    texts: tuple[str, ...] = ()
    """Texts that the encoder embeds and the model inverts"""
    samples: Candidates = 1
    """Number of texts for each latent; more than one need a temperature above 0 or the length 'sample'"""
    keep: Keep = "best"
    """best: of several texts, that of the highest cosine | all"""


@config
class T2lConfig:
    """Additional inputs of t2l (latents from texts), besides the held-out sentences."""

    files: tuple[str, ...] = ()
    """Text files with one sentence per line"""
    texts: tuple[str, ...] = ()


@config
class UnconditionalConfig:
    """Parameters of the unconditional generation of texts and latents."""

    count: Rows = 64
    order: JointOrder = "text_first"
    text: Annotated[Any, TEXT_SAMPLERS]
    latent: Annotated[Any, LATENT_SAMPLERS]
    length: str | int = "sample"

    def __post_init__(self) -> None:
        how_many_lengths(self.length)
        if isinstance(self.length, str) and self.length.startswith("top-"):
            raise InvalidValue(
                f"length '{self.length}' ranks texts instead of drawing them; use 'sample' or 'argmax'", "length"
            )
        refuse_samplers(self.order, self.text, self.latent)


@config
class InfillConfig:
    """Texts to infill, given the embeddings of the texts `latents_of` (none, or one for each text)."""

    texts: tuple[str, ...] = ()
    latents_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.latents_of and len(self.latents_of) != len(self.texts):
            raise InvalidValue(
                f"latents_of must be empty or have one text for each of {len(self.texts)} texts, found "
                f"{len(self.latents_of)}",
                "latents_of",
                "texts",
            )


@config
class EditConfig:
    """Source texts to be partly rewritten given the embeddings of target texts."""

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    strength: Fraction = 0.5
    which: Literal["least_likely", "random"] = "least_likely"

    def __post_init__(self) -> None:
        if len(self.targets) not in (1, len(self.sources)) and self.sources:
            raise InvalidValue(
                f"targets must have one text, or one for each of {len(self.sources)} sources, found "
                f"{len(self.targets)}",
                "sources",
                "targets",
            )


@config
class InterpolateConfig:
    """Interpolations from each text of `starts` to the corresponding text of `ends`."""

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    steps: Steps = 5
    path: Literal["slerp", "lerp"] = "slerp"

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.ends):
            raise InvalidValue(
                f"expected as many ends as starts, found {len(self.starts)} starts, {len(self.ends)} ends",
                "starts",
                "ends",
            )
        if self.steps < 2:
            raise InvalidValue(f"steps must be at least 2, which includes both ends, found {self.steps}", "steps")


@config
class ImageTasksConfig:
    """Parameters of the tasks on images; `SamplingConfig.rows` examples of the split are drawn and captioned."""

    image: Annotated[Any, LATENT_SAMPLERS] = field(default_factory=DdimConfig)
    """Sampler of images given captions"""
    caption: Annotated[Any, CAPTION_SAMPLERS] | None = None
    """Sampler of captions given images: a text sampler, or a latent sampler if captions are noised as vectors; None:
    the default of the model"""
    length: str | int = "argmax"
    """Length of the captions: argmax | sample | a number of tokens"""
    joint_count: Rows = 64
    """Number of images that are drawn together with their captions"""
    joint_steps: Steps = 50

    def __post_init__(self) -> None:
        how_many_lengths(self.length)
        if isinstance(self.length, str) and self.length.startswith("top-"):
            raise InvalidValue(f"length '{self.length}' ranks captions; use 'argmax', 'sample' or a number", "length")
        for name, sampler in (("image", self.image), ("caption", self.caption)):
            if (draws := getattr(sampler, "draws", 1)) > 1:
                raise InvalidValue(
                    f"{name}.draws is {draws}, but the mean of several draws is not a sample: set it to 1",
                    f"{name}.draws",
                )


@config
class SamplingConfig:
    """Parameters of `kedro run --pipelines=sampling`."""

    tasks: tuple[Task, ...] | None = None
    """None: every task that has an input and that the run supports; a task that the run does not support is refused"""
    checkpoint: CheckpointName = "latest"
    """latest | best | a step"""
    use_ema: bool = True
    device: Device | None = None
    """None: the first GPU if there is one, otherwise the CPU"""
    batch_tokens: Rows | None = None
    """Number of tokens of one batch including pads; None: chosen by the device and the size of the vocabulary"""
    split: Literal["train", "validation", "test"] = "test"
    rows: RowsOrNone = 500
    """Number of examples of the split that l2t, t2l and the tasks on images read; the same seed gives the same ones"""
    text: Annotated[Any, TEXT_SAMPLERS]
    """Sampler of all text tasks except `unconditional` and captions of images, which have their own"""
    latent: Annotated[Any, LATENT_SAMPLERS]
    search: SearchConfig = field(default_factory=SearchConfig)
    length: str | int = "argmax"
    """Length of the texts of l2t and interpolate: argmax | sample | top-n | a number of tokens"""
    neighbours: bool = True
    """Whether to find the training sentence nearest to each unconditional latent"""
    l2t: L2tConfig = field(default_factory=L2tConfig)
    t2l: T2lConfig = field(default_factory=T2lConfig)
    unconditional: UnconditionalConfig
    infill: InfillConfig = field(default_factory=InfillConfig)
    edit: EditConfig = field(default_factory=EditConfig)
    interpolate: InterpolateConfig = field(default_factory=InterpolateConfig)
    images: ImageTasksConfig = field(default_factory=ImageTasksConfig)

    def __post_init__(self) -> None:
        how_many_lengths(self.length)
        for task in self.tasks or ():
            if not self.has_input(task):
                raise InvalidValue(f"task '{task}' has no input: set {_INPUTS[task]}", "tasks")

    def has_input(self, task: Task) -> bool:
        """Return whether the parameters contain an input for a task."""
        found = {
            "l2t": self.rows > 0 or self.l2t.files or self.l2t.texts,
            "t2l": self.rows > 0 or self.t2l.files or self.t2l.texts,
            "unconditional": True,
            "infill": self.infill.texts,
            "edit": self.edit.sources,
            "interpolate": self.interpolate.starts,
            "caption_to_image": self.rows > 0,
            "image_to_caption": self.rows > 0,
            "image_text": True,
        }
        return bool(found[task])

    def text_sampler(self, task: Task) -> tuple[str, Any, bool] | None:
        """Return the path of the parameter of a task's text sampler, the sampler, and whether it is given latents or
        images; None for a task without one.
        """
        if task in ("t2l", "caption_to_image", "image_text"):
            return None
        if task == "image_to_caption":
            own = self.images.caption
            return None if own is None or isinstance(own, GaussianSampler) else ("sampling.images.caption", own, True)
        if task == "unconditional":
            return "sampling.unconditional.text", self.unconditional.text, self.unconditional.order == "latent_first"
        return "sampling.text", self.text, task != "infill" or bool(self.infill.latents_of)

    def use(self, task: Task) -> Any:
        """Return the use of the run that a task needs (`objectives.capabilities.Use`)."""
        return "infill_given_latent" if task == "infill" and self.infill.latents_of else task

    def length_of(self, task: Task) -> str | int | None:
        """Return the length of the texts of a task; None if the task chooses no lengths."""
        lengths: dict[str, str | int] = {
            "l2t": self.length, "interpolate": self.length, "unconditional": self.unconditional.length,
            "image_to_caption": self.images.length, "image_text": "sample",
        }  # fmt: skip
        return lengths.get(task)

    def requests(self, task: Task) -> bool:
        """Return whether a task takes place if the run supports it."""
        return self.has_input(task) if self.tasks is None else task in self.tasks
