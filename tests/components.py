"""Every text process, model and objective for the conformance suites, with options and data that it can be built for.

A family adds options, the fields of its data and its stores in `tests/families/NAME/cases.py`. Components that are in no
table take part with their default options.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.diffusion.enumeration import VOCABULARY, Interpolation, masking
from torch import Tensor

from mm_ldlm.core import Kinds, parse_kind
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES, Batch
from mm_ldlm.objectives.root import TrainableRoot, build_root

FAMILIES = Path(__file__).parent / "families"


class Cases:
    """What the families' `cases.py` say: `OPTIONS` {(group, kind): [options, …]}, `FIELDS` {name: shape}, `STORES` {name: tensor},
    `MODELS` {kind of objective: options of a model that it trains}, `VALUES` {name: function of (B, L) → values},
    `INPUTS` {argument of a model: function of (model, batch, generator) → values} and `LAWS` {kind of text process: its
    law in closed form}."""

    def __init__(self) -> None:
        self.options: dict[tuple[str, str], list[dict[str, Any]]] = {
            ("text_processes", "absorbing"): [{}, {"schedule": {"kind": "cosine", "epsilon": 5e-3}, "t_min": 0.05}],
            ("objectives", "multimodal"): [
                *({"mode": mode} for mode in ("l2t", "t2l", "unconditional", "mixed")),
                {"mode": "sequential", "self_condition": True, "_model": {"kind": "mmdit", "self_condition": True}},
                {"parameterisation": "x0", "z_loss": 1e-3},
            ],
            ("objectives", "text_diffusion"): [{}, {"z_loss": 1e-3}],
            ("models", "mmdit"): [
                {},
                {"cross_modal_blocks": 1, "latent_tokens": 3},
                {"direct_views": True, "token_vectors": "encoder", "self_condition": True},
            ],
        }
        self.fields: dict[str, tuple[int, ...]] = {"latents": (4,)}
        self.stores: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {
            "latents_Bd": lambda model, batch, draw: torch.randn(
                len(batch.tokens_BL), SHAPE.dim(getattr(model, "field", "latents")), generator=draw
            ),
            "self_condition_Bd": lambda model, batch, draw: (
                torch.randn(len(batch.tokens_BL), SHAPE.dim(model.field), generator=draw)
                if model.config.self_condition
                else None
            ),
        }
        self.laws: dict[str, Any] = {"absorbing": Interpolation(masking)}
        self.models: dict[str, dict[str, Any]] = {"multimodal": {"kind": "mmdit"}, "text_diffusion": {"kind": "dit"}}
        for path in sorted(FAMILIES.glob("*/cases.py")):
            module = importlib.import_module(f"tests.families.{path.parent.name}.cases")
            for name in ("options", "fields", "stores", "values", "inputs", "models", "laws"):
                getattr(self, name).update(getattr(module, name.upper(), {}))


CASES = Cases()
SHAPE = DataShape(**vars(VOCABULARY), max_length=7, fields=CASES.fields)
SMALL = {"dim": 16, "depth": 2, "heads": 2}
"""Options of a small transformer"""


def kinds_with_options(kinds: Kinds) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (kind, options) of every component of this package and of installed ones."""
    for kind in kinds:
        for options in CASES.options.get((kinds.group, kind), [{}]):
            yield kind, options


def labelled(cases: Any) -> dict[str, Any]:
    """Make the arguments of `pytest.mark.parametrize`, with a readable name of each case."""
    cases = list(cases)
    names = ["-".join([kind, *(f"{key}={value}" for key, value in options.items())])[:70] for kind, options in cases]
    return {"argvalues": cases, "ids": names}


def stores_of(config: Any) -> dict[str, Any]:
    return {name: CASES.stores[name] for name in config.stores}


def process_of(kind: str, options: Mapping[str, Any], shape: DataShape = SHAPE) -> Any:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    return config.build(shape, **stores_of(config))


PROCESSES = list(kinds_with_options(TEXT_PROCESSES))
MODELS_AND_OPTIONS = list(kinds_with_options(MODELS))
OBJECTIVES_AND_OPTIONS = [
    *kinds_with_options(OBJECTIVES),
    *(("text_diffusion", {"process": {"kind": kind, **options}}) for kind, options in dict(PROCESSES).items()),
]


def model_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a small model of a kind."""
    fields = parse_kind(MODELS, {"kind": kind}, at="model").__dataclass_fields__
    return {"kind": kind, **{key: value for key, value in SMALL.items() if key in fields}, **options}


def model_of(kind: str, options: Mapping[str, Any], *, stirred: bool = True, seed: int = 0) -> Any:
    """Build a small model; `stirred` adds noise to its parameters, because a new model is the identity."""
    config = parse_kind(MODELS, model_options(kind, options), at="model")
    draw = torch.Generator().manual_seed(7)
    stores = {name: torch.randn(SHAPE.vocab_size, SHAPE.dim("latents"), generator=draw) for name in config.stores}
    model = config.build(SHAPE, generator=torch.Generator().manual_seed(seed), **stores)
    return (stir(model) if stirred else model).eval()


def stir(module: Any) -> Any:
    """Add noise to every parameter, the same for parameters of one name; return the module."""
    for name, parameter in module.named_parameters():
        noise = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=noise)
    return module


def inputs_of(model: Any, batch: Batch) -> dict[str, Any]:
    """Return the arguments of a model that have no default, and those of `CASES.inputs`, for the texts of a batch."""
    draw = torch.Generator().manual_seed(3)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if name in ("tokens_BL", "valid_BL"):
            found[name] = getattr(batch, name)
        elif name.startswith("t_"):
            found[name] = torch.rand(len(batch.tokens_BL), generator=draw)
        elif name in CASES.inputs:
            found[name] = CASES.inputs[name](model, batch, draw)
        else:
            assert parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD, name
    return {name: value for name, value in found.items() if value is not None}


def outputs_of(found: Any) -> dict[str, Tensor]:
    """Return the outputs of a model by name."""
    named = {"logits": found} if isinstance(found, Tensor) else found._asdict()
    return {name: value for name, value in named.items() if value is not None}


def configs_of(kind: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the configurations of an objective and of a small model that it trains, `_model` of the options."""
    own = {key: value for key, value in options.items() if not key.startswith("_")}
    model = {**CASES.models.get(kind, {"kind": "dit"}), **options.get("_model", {})}
    config = parse_kind(OBJECTIVES, {"kind": kind, **own}, at="objective")
    return config, parse_kind(MODELS, model_options(model.pop("kind"), model), at="model")


def root_of(
    kind: str, options: Mapping[str, Any], *, fixed_shapes: bool = False, stirred: bool = True
) -> TrainableRoot:
    """Build an objective with a small model that it trains; `_stirred` of the options says that nothing is left to learn
    at its initial weights."""
    config, model = configs_of(kind, options)
    shape = SHAPE.__class__(**{**vars(SHAPE), "noise_ids": config.noise_ids(SHAPE, **stores_of(config))})
    root = build_root(
        model, config, shape, generator=torch.Generator().manual_seed(0), stores=stores_of(config),
        fixed_shapes=fixed_shapes,
    )  # fmt: skip
    root.objective.set_token_counts(lambda: torch.arange(1, 1 + shape.first_noise_id))
    root.objective.set_training_length(100)
    return stir(root) if stirred or options.get("_stirred") else root


def random_batch(shape: DataShape = SHAPE, *, examples: int = 4, filling: int = 0, seed: int = 0) -> Batch:
    """Make a batch of random texts of 1 to max_length words, with values of every field; the last rows are filling."""
    draw, B, L = torch.Generator().manual_seed(seed), examples + filling, shape.max_length
    length_B = torch.randint(1, L + 1, (B,), generator=draw)
    length_B[0] = L
    length_B[examples:] = 0
    valid_BL = torch.arange(L) < length_B[:, None]
    words = torch.tensor(shape.word_ids)
    tokens_BL = torch.where(valid_BL, words[torch.randint(len(words), (B, L), generator=draw)], shape.pad_id)
    fields = {name: torch.randn(B, shape.dim(name), generator=draw) for name in shape.fields}
    fields |= {name: make(tokens_BL, valid_BL, draw) for name, make in CASES.values.items()}
    position_B = torch.arange(B)
    return Batch(
        tokens_BL, valid_BL, fields, torch.where(position_B < examples, position_B, -1), position_B,
        global_size=examples, global_tokens=int(valid_BL.sum()),
    )  # fmt: skip
