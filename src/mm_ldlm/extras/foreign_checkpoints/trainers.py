"""Trainers whose checkpoints can be imported, and what becomes of every key of their configurations.

Most of them train the network of the format `ddit`, some with further parts. A trainer is a table: the objective that
has its function here, and the values of the keys by which its configurations are recognised. Families contribute theirs
to `TRAINERS`, with the format of the parameters if it is another one.
"""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mm_ldlm.core import CheckpointError, Registry, nearest, show
from mm_ldlm.extras.foreign_checkpoints.parameter_names import DDIT, Format, rules_of
from mm_ldlm.training.checkpoints.weights import flat as leaves

TRAINERS = Registry(
    "trainer of checkpoints",
    {"mdlm": "mm_ldlm.extras.foreign_checkpoints.trainers:MDLM"},
    group="checkpoint_trainers",
)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Objective and model of this project that compute the function of a checkpoint."""

    when: Mapping[str, tuple[Any, ...]]
    """Permitted values of keys, which a configuration has or lacks"""
    objective: Mapping[str, Any]
    """Its options, with their kinds; "$key" is the value of a key"""
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options in addition to the format's; "$key" is the value of a key"""
    timesteps: str | None = None
    """How the timestep reaches the model if no key decides it; "constant": never, and the model has no option for it"""
    added: str = "[MASK]"
    """The token of a row beyond the tokenizer's ids"""
    reads: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"t_B": "t"})
    """Arguments of the model besides the noisy tokens, by their names in a reference"""
    predicts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Outputs of the model besides the logits, by their names in a reference"""
    keys: Sequence[tuple[Any, ...]] = ()
    """Its own keys, as `Keys`; they precede `KEYS`"""
    needs: tuple[str, ...] = ()
    """Keys that a configuration must have"""
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Fields of the data, and the matrices there that read them; a checkpoint must have these"""
    rules: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Parameters besides the format's, as of `parameter_names.extended`"""
    zeros: tuple[str, ...] = ()
    """Parameters here that are zero, besides the format's"""
    format: Format = DDIT
    """Of the parameters; in a table a mapping of its attributes, with its rules as of `parameter_names.rules_of`"""


MDLM: dict[str, Any] = {
    "when": {
        "algo.name": ("mdlm",), "parameterization": ("subs",), "algo.parameterization": ("subs",),
        "diffusion": ("absorbing_state",), "model.diffusion_process": ("mdlm", "absorbing"), "model_type": ("mdlm",),
        "algo.cross_attn": (False,),
    },
    "objective": {"kind": "text_diffusion"},
}  # fmt: skip
"""MDLM (arXiv:2406.07524), also as trained by CCDD, Duo, BD3-LM and UNI-D2"""
SELECTORS = (*MDLM["when"], "graph.type")
"""Keys by which configurations are recognised: their values must be named by the trainer"""


class Keys(NamedTuple):
    """Keys of configurations."""

    names: str
    """Patterns, separated by spaces"""
    use: str
    """Their use here, or the reason why they are not needed"""
    only: tuple[Any, ...] = ()
    """The values with which a model here has the same function; empty: all"""


NOISES = {
    "loglinear": "log_linear", "log-linear": "log_linear", "log_linear": "log_linear", "geometric": "geometric",
    "discrete_diffusion.noise_schedules.LogLinear": "log_linear",
    "discrete_diffusion.noise_schedules.GeometricNoise": "geometric",
}  # fmt: skip
"""Their schedules, and ours"""
HEADS, LENGTH = (
    ("model.n_heads", "n_heads", "model.num_heads"),
    ("model.length", "model.max_seq_len", "model_length", "length"),
)
TIME, NOISE = ("time_conditioning", "algo.time_conditioning"), ("noise.type", "noise._target_")
TOKENIZER, MASK = ("data.tokenizer_name_or_path", "model.decoder_tokenizer"), "model.mask_token_id"
KEYS = (
    Keys(" ".join(HEADS), "model.heads"),
    Keys(" ".join(LENGTH), "shape.max_length"),
    Keys(" ".join(TIME), "model.time_conditioning and model.time_schedule"),
    Keys(" ".join(NOISE), "objective.process.schedule", tuple(NOISES)),
    Keys("algo.noise_schedule.name", "objective.process.schedule", tuple(NOISES)),
    Keys("noise.eps noise.sigma_min noise.sigma_max algo.noise_schedule.*", "objective.process.schedule"),
    Keys(" ".join(SELECTORS), "objective"),
    Keys("block_size", "the length of blocks, of trainers that have them"),
    Keys("model.hidden_size hidden_dim hidden_size model.cond_dim cond_dim model.n_blocks n_blocks vocab_size tokens",
         "the shapes of the tensors"),
    Keys(MASK, "the id of [MASK]"),
    Keys("model.tie_word_embeddings tie_word_embeddings", "the file has both tables"),
    Keys("model.scale_by_sigma", "the scaling of scores; not read by other trainers"),
    Keys("T algo.T", "objective.process: time is continuous", (0,)),
    Keys("subs_masking algo.subs_masking algo.shift_loss_targets training.change_of_variables",
         "other losses and inputs", (False,)),
    Keys("algo.causal_attention model.causal_attention causal causal_attention", "models of the next token", (False,)),
    Keys("is_vision cfg", "models of images, and of classes", (False,)),
    Keys("classifier_backbone classifier_model guidance", "guidance, of the samplers here", (None,)),
    Keys("model.adaln adaln", "models without adaLN are causal in those trainers"),
    Keys("backbone algo.backbone", "the network", ("dit", "block-dit", "hf_dit")),
    Keys("model.type type", "the network", ("ddit", "dit", "block-dit", "diffusion")),
    Keys("model._target_", "the network", ("discrete_diffusion.models.dit.DIT",
                                           "discrete_diffusion.models.block_dit.BlockDiT")),
    Keys("model.attn_type", "attention", ("full",)),
    Keys("model.attn_backend attn_backend model.vocab_lookup model.max_tokens model.name name model.t_eps cross_attn",
         "how the same numbers are computed"),
    Keys("algo.ignore_bos", "the first token of a text is scored and written as all others"),
    Keys("model.dropout dropout algo.dropout model.p_uniform algo.loss_type algo.var_min var_min "
         "algo.clip_search_* algo.fix_clipping algo.mdlm_loss_scale algo.zero_recon_loss zero_recon_loss "
         "cfg_num_classes algo.curriculum.* algo.curriculum_* algo.gumbel_* algo.gamma_* algo.integral_cache_path "
         "algo.update_teacher_every algo.teacher_ema algo.posterior_loss_weight algo.linear_growth* algo.data.* "
         "sampling_eps_* training.* loss.* optim.* optimizer.* lr_scheduler.* loader.* trainer.* strategy.* "
         "callbacks.* seed ngpus", "the training that was"),
    Keys("algo.sampler* sampling.* prior.* neg_infinity_mode", "the samplers here have their own options"),
    Keys("algo._target_ algo.forward_process.* graph.file graph.report_all", "implied by the objective"),
    Keys(" ".join(TOKENIZER), "the tokenizer, unless --tokenizer or files next to the weights give it"),
    Keys("data.* eval.* mode scratch_dir", "the data of a run here are its own"),
    Keys("logging.* wandb.* hydra.* checkpointing.* _name_or_path architectures auto_map.* return_dict torch_dtype "
         "dtype transformers_version", "where files are and who reads them"),
)  # fmt: skip
"""The keys that are known; a configuration with another one is refused"""


@functools.cache
def trainers() -> tuple[Trainer, ...]:
    """Load all trainers, the core's first."""
    tables = [dict(TRAINERS.load(name)) for name in TRAINERS]
    for table in tables:
        if "format" in table:
            table["format"] = Format(**{**table["format"], "rules": rules_of(table["format"]["rules"])})
    return tuple(Trainer(**table) for table in tables)


def format_of(names: Collection[str]) -> Format | None:
    """Return the format that a checkpoint with these names has; None if it has no known one."""
    return next((each.format for each in trainers() if each.format.fits(names)), None)


def trainer_of_kind(kind: Any) -> Trainer | None:
    """Return the trainer of models of a kind; None for models with the format's own options."""
    return next((each for each in trainers() if each.model.get("kind") == kind), None)


def trainer_of(settings: Mapping[str, Any], names: Collection[str], file: Path) -> Trainer:
    """Return the trainer of a configuration, given as `flat` makes it, and of parameters with these names.

    Raises:
        CheckpointError: a key or a value has no meaning here, or a necessary key is missing.
    """
    given = {key: settings[key] for key in SELECTORS if key in settings}
    fitting = [
        each
        for each in trainers()
        if all(settings[key] in values for key, values in each.when.items() if key in settings)
        and given.keys() <= each.when.keys()
        and {*each.fields.values()} <= {*names}
        and each.format.fits(names)
    ]
    found = max(fitting, key=lambda each: len(each.fields), default=None)
    keys = (*(Keys(*each) for each in (() if found is None else found.keys)), *KEYS)
    for key, value in settings.items():
        rule = next((each for each in keys for name in each.names.split() if fnmatch.fnmatchcase(key, name)), None)
        if rule is None:
            known = [name for each in keys for name in each.names.split()]
            raise CheckpointError(
                f"{file}: its configuration has the key {show(key, 80)} ({show(value, 60)}), which the import "
                f"does not know.{nearest(key, known)} If the outputs of the model do not depend on it, save the "
                "configuration without it as config.yaml next to the weights."
            )
        if rule.only and value not in rule.only:
            raise CheckpointError(
                f"{file}: expected {key} ({rule.use}) to be {' or '.join(map(str, rule.only))}, found "
                f"{show(value, 60)}. No model of this project computes that function."
            )
    if found is None:
        raise CheckpointError(
            f"{file}: no trainer with {', '.join(f'{k}: {show(v, 60)}' for k, v in given.items())} is known here. If "
            "an objective here has the same function, train one step with it and the same model, and import by --like "
            "RUN."
        )
    if lacking := [key for key in found.needs if key not in settings]:
        raise CheckpointError(
            f"{file}: expected {' and '.join(lacking)} in the configuration, because the names of the parameters do "
            "not show the value. Put the config.yaml of the training next to the weights."
        )
    return found


def schedule_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the schedule α_t of a configuration; by default the log-linear one."""
    kind = NOISES[first(settings, *NOISE, "algo.noise_schedule.name") or "loglinear"]
    names = {"epsilon": "noise.eps"} if kind == "log_linear" else {n: f"noise.{n}" for n in ("sigma_min", "sigma_max")}
    return {"kind": kind} | {ours: float(settings[key]) for ours, key in names.items() if key in settings}


def filled(options: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the values "$key" of options by the values of these keys."""
    named = {name: value[1:] for name, value in options.items() if isinstance(value, str) and value.startswith("$")}
    return {**options, **{name: settings.get(key) for name, key in named.items()}}


def first(settings: Mapping[str, Any], *keys: str) -> Any:
    """Return the value of the first key that a configuration has; None if it has none of them."""
    return next((settings[key] for key in keys if key in settings), None)


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a configuration to values by dotted keys, with the references `${key}` to other values replaced."""
    found = leaves(tree)
    referred = {key: re.fullmatch(r"\$\{([\w.]+)\}", value) for key, value in found.items() if isinstance(value, str)}
    return found | {key: found.get(hit[1], found[key]) for key, hit in referred.items() if hit}
