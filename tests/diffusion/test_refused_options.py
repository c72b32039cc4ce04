"""Options of schedules and processes are accepted up to their bounds, and refused under the keys of all that take part,
with the values that were found."""

from __future__ import annotations

import re
from itertools import combinations, permutations
from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule
from mm_ldlm.diffusion.timesteps import antithetic

SCHEDULES = {"mask": MaskSchedule, "gaussian": GaussianSchedule}
# what is refused, the keys that the message names, and what it says was found
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("mask", {"name": "sine"}, "name", "'sine'"), ("gaussian", {"name": "flaw"}, "name", "'flaw'"),
    ("mask", {"epsilon": 1.5}, "epsilon", r"found 1\.5"),
    ("mask", {"sigma_min": 3.0, "sigma_max": 2.0}, "sigma_min sigma_max", r"found 3\.0 and 2\.0"),
    ("gaussian", {"beta_min": 0.3, "beta_max": 0.2}, "beta_min beta_max", r"found 0\.3 and 0\.2"),
    ("gaussian", {"sigmoid_start": 2.0, "sigmoid_end": 1.0}, "sigmoid_start sigmoid_end", r"found 2\.0 and 1\.0"),
    ("absorbing", {"t_min": 1.0}, "t_min", r"found 1\.0"), ("uniform", {"t_min": 1.5}, "t_min", r"found 1\.5"),
    ("sedd", {"t_min": 2.0}, "t_min", r"found 2\.0"), ("gidd", {"t_min": 3.0}, "t_min", r"found 3\.0"),
    ("gidd", {"p_uniform": 1.0}, "p_uniform", r"found 1\.0"), ("gidd", {"gamma": 0.99}, "gamma", r"found 0\.99"),
    ("gidd", {"gamma": 2.01}, "gamma", r"found 2\.01"), ("hdlm", {"gamma": 0.49}, "gamma", r"found 0\.49"),
    ("hdlm", {"gamma": 16.5}, "gamma", r"found 16\.5"), ("hdlm", {"t_min": 0.5}, "t_min", r"found 0\.5"),
    ("sedd", {"graph": "both"}, "graph", "'both'"),
]  # fmt: skip
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("mask", {"epsilon": 0.0}), ("gidd", {"p_uniform": 0.0}), ("gidd", {"p_uniform": 0.99}), ("gidd", {"gamma": 1}),
    ("gidd", {"gamma": 2}), ("hdlm", {"gamma": 0.5}), ("hdlm", {"gamma": 16}), ("hdlm", {"t_min": 0.49}),
    ("gidd", {"t_min": 0.99}), ("absorbing", {"t_min": 0.99}), ("uniform", {"t_min": 0.99}), ("sedd", {"t_min": 0.99}),
]  # fmt: skip


def read(kind: str, options: dict[str, Any]) -> Any:
    if kind in SCHEDULES:
        return parse(SCHEDULES[kind], options, at="process.schedule")
    return parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")


@pytest.mark.parametrize(("kind", "options", "keys", "found"), REFUSED, ids=str)
def test_a_refusal_names_every_option_that_takes_part(
    kind: str, options: dict[str, Any], keys: str, found: str
) -> None:
    with pytest.raises(ConfigurationError, match=found) as raised:
        read(kind, options)
    at = "process.schedule" if kind in SCHEDULES else "process"
    named = re.findall(r"'(process[\w.]*)'", str(raised.value).split(": ")[0])
    assert named == [f"{at}.{key}" for key in keys.split()]


@pytest.mark.parametrize(("kind", "options"), ACCEPTED, ids=str)
def test_the_bounds_of_an_option_are_accepted(kind: str, options: dict[str, Any]) -> None:
    found = read(kind, options)
    assert {key: getattr(found, key) for key in options} == options


CLUSTERS = [-1, 0, 1, 0, 1, -1]


@pytest.mark.parametrize(
    ("clusters", "found"),
    [
        (CLUSTERS[:-1], "found 5 ids, 4 with a cluster"), ([*CLUSTERS, 0], "found 7 ids, 5 with a cluster"),
        ([0, *CLUSTERS[1:]], "found 6 ids, 5 with a cluster (id 0 is the first that differs)."),
        ([-1, 0, -1, 0, 1, -1], "found 6 ids, 3 with a cluster (id 2 is the first that differs)."),
        ([-1, 0, 1, 0, -1, 1], "found 6 ids, 4 with a cluster (id 4 is the first that differs)."),
    ],
)  # fmt: skip
def test_clusters_of_another_vocabulary_are_refused_with_their_numbers(clusters: list[int], found: str) -> None:
    config = parse_kind(TEXT_PROCESSES, {"kind": "hdlm"}, at="process")
    ids = {"vocab_size": 6, "pad_id": 0, "mask_id": 5}
    config.build(**ids, token_clusters=torch.tensor(CLUSTERS)[:, None])
    with pytest.raises(ConfigurationError, match=f"each of the 4 words of a vocabulary of 6 ids .* {re.escape(found)}"):
        config.build(**ids, token_clusters=torch.tensor(clusters)[:, None])


@pytest.mark.parametrize("special", list(combinations(range(6), 2)), ids=str)
def test_clusters_of_a_tokenizer_with_other_special_ids_are_refused(special: tuple[int, int]) -> None:
    """The numbers of ids and of words are the same; only the ids of [PAD] and [MASK] are others."""
    config = parse_kind(TEXT_PROCESSES, {"kind": "hdlm"}, at="process")
    clusters = torch.tensor([-1 if i in special else i % 2 for i in range(6)])[:, None]
    for pad_id, mask_id in permutations(range(6), 2):
        ids = {"vocab_size": 6, "pad_id": pad_id, "mask_id": mask_id}
        if {pad_id, mask_id} == set(special):
            assert config.build(**ids, token_clusters=clusters).cluster_of_V.tolist() == clusters[:, 0].tolist()
        else:
            with pytest.raises(ConfigurationError, match="The clusters belong to another tokenizer"):
                config.build(**ids, token_clusters=clusters)


@pytest.mark.parametrize(("total", "t_min"), [(0, 0.1), (-1, 0.1), (3, 1.0), (3, -0.1)])
def test_times_of_no_examples_or_beyond_the_end_are_refused(total: int, t_min: float) -> None:
    with pytest.raises(ValueError, match=f"found {total} and {t_min}"):
        antithetic(0.5, torch.arange(3), total, t_min)


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "gidd", "sedd", "d3pm", "hdlm"])
def test_a_process_has_every_option_of_its_configuration(kind: str) -> None:
    options = {
        "t_min": 0.07, "schedule": {"name": "cosine", "epsilon": 0.2}, "loss_weighting": "constant", "steps": 7,
        "p_uniform": 0.3, "gamma": 1.7, "max_weight": 3.5, "graph": "uniform",
    }  # fmt: skip
    plain = read(kind, {})
    own = {key: value for key, value in options.items() if hasattr(plain, key)}
    if kind == "gidd":
        own["loss_weighting"] = "clip"
    config = read(kind, own)
    stores = {"token_clusters": torch.tensor(CLUSTERS)[:, None]} if config.stores else {}
    process = config.build(vocab_size=6, pad_id=0, mask_id=5, **stores)
    for key in own:
        if key != "graph":
            assert getattr(process, key) == getattr(config, key) != getattr(plain, key)
    assert (process.kind, process.vocab_size, process.pad_id, process.mask_id) == (kind, 6, 0, 5)
