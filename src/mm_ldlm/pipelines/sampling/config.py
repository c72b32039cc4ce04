"""Parameters of the sampling pipeline and of its tasks on texts and latents."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any, Literal

from mm_ldlm.core import (
    CheckpointName,
    Device,
    Precision,
    Rows,
    RowsOrNone,
    checked,
    config,
    nearest,
)
from mm_ldlm.pipelines.sampling import TASKS
from mm_ldlm.sampling.joint import JointOrder, refuse_samplers
from mm_ldlm.sampling.limits import Candidates, Length
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS
from mm_ldlm.sampling.search import SearchConfig


@config
class T2lConfig:
    """Additional inputs of t2l (latents from texts), besides the held-out sentences."""

    files: tuple[str, ...] = ()
    """Text files with one sentence per line"""
    texts: tuple[str, ...] = ()

    def input_files(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of each file."""
        yield from ((f"files[{place}]", file) for place, file in enumerate(self.files))


@config
class L2tConfig(T2lConfig):
    """Additional inputs of l2t (texts from latents), besides the held-out sentences.

    `files` are `.npy` files of raw latents (n, d); the encoder embeds `texts`, and the model inverts them.
    """

    samples: Candidates = 1
    """Number of texts for each latent; at temperature 0 they have different lengths. The table marks the best"""


@config
class UnconditionalConfig:
    """Parameters of the unconditional generation of texts and latents."""

    count: Rows = 64
    order: JointOrder = "text_first"
    text: Annotated[Any, TEXT_SAMPLERS]
    latent: Annotated[Any, LATENT_SAMPLERS]
    length: Length = "sample"

    def __post_init__(self) -> None:
        refuse_samplers(self.order, self.text, self.latent)


def _known(task: str) -> str:
    if task not in TASKS:
        raise ValueError(f"expected a task, found '{task}'.{nearest(task, TASKS)} Choose from: {', '.join(TASKS)}")
    return task


@config
class SamplingConfig:
    """Parameters of `kedro run --pipelines=sampling`."""

    tasks: tuple[Annotated[str, checked(_known)], ...] | None = None
    """Names of `TASKS`; None: every task that has an input and that the run supports. A task that is listed and that
    the run does not support is refused"""
    checkpoint: CheckpointName = "latest"
    """latest | best | a step"""
    use_ema: bool = True
    device: Device | None = None
    """None: the first GPU if there is one, otherwise the CPU"""
    precision: Precision = "auto"
    batch_tokens: Rows | None = None
    """Number of tokens of one batch including pads; None: chosen by the device and the size of the vocabulary"""
    split: Literal["train", "validation", "test"] = "test"
    rows: RowsOrNone = 500
    """Number of examples of the split that the tasks on held-out examples read; the same seed gives the same ones"""
    text: Annotated[Any, TEXT_SAMPLERS]
    """Sampler of all text tasks that set none"""
    latent: Annotated[Any, LATENT_SAMPLERS]
    search: SearchConfig = field(default_factory=SearchConfig)
    length: Length = "argmax"
    """Length of the texts of l2t: argmax | sample | a number of tokens"""
    neighbours: bool = True
    """Whether to find the training sentence nearest to each unconditional latent"""
    l2t: L2tConfig = field(default_factory=L2tConfig)
    t2l: T2lConfig = field(default_factory=T2lConfig)
    unconditional: UnconditionalConfig
