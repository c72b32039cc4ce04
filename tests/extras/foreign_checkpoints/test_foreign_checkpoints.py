"""Checkpoints of other trainers: the same logits here, the same bits after an export, and nothing of a damaged file."""

import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from omegaconf import OmegaConf
from safetensors.torch import save_file
from tests.components import CASES
from tests.extras.foreign_checkpoints import ddit
from tests.extras.foreign_checkpoints.ddit import LENGTH, WORDS, C, D, folder
from tests.inference.runs import write_run
from tests.training import task
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, parse
from mm_ldlm.extras.foreign_checkpoints import commands
from mm_ldlm.extras.foreign_checkpoints.converting import _fitted, head_dim_of
from mm_ldlm.extras.foreign_checkpoints.exporting import write_model_pt
from mm_ldlm.extras.foreign_checkpoints.importing import _with_mask, import_checkpoint
from mm_ldlm.extras.foreign_checkpoints.trainers import flat, schedule_of
from mm_ldlm.inference.exporting import source_of
from mm_ldlm.inference.loading import load_run
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training.checkpoints import folder as checkpoints

ROWS = 64
"""Rows of the embedding: the vocabulary of 23 tokens, rounded"""


def weights(rows: int = ROWS) -> dict[str, Tensor]:
    return ddit.weights(rows)


def older(place: Path, found: Any = None) -> Path:
    """Write the folder of an older trainer: weights, tokenizer with special tokens, config.yaml and state.json."""
    settings = {"model": {"diffusion_process": "mdlm", "n_heads": 2}}
    folder(place, weights() if found is None else found, settings)
    base = Tokenizer.from_file(str(place / "tokenizer.json"))
    base.add_special_tokens(["[PAD]", "[MASK]"])
    base.save(str(place / "tokenizer.json"))
    (place / "state.json").write_text('{"state": {"step": 90000}}')
    return place


def batch() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    valid = torch.arange(7) < torch.tensor([7, 4])[:, None]
    return torch.randint(0, WORDS, (2, 7), generator=draw).masked_fill(~valid, 21), valid, torch.tensor([0.3, 0.9])


def saved(run: Path, name: str = "model") -> dict[str, Tensor]:
    return checkpoints.tensors(checkpoints.find(run), f"{name}.safetensors")


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


# -- import ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timesteps", ["plain", "none", "sigma"])
@pytest.mark.parametrize("wrapped", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("averaged", ["", "in order", "by name"])
def test_an_imported_dit_of_mdlm_has_the_logits_of_its_definition(
    timesteps: Any, wrapped: str, averaged: str, tmp_path: Path
) -> None:
    theirs = weights()
    theirs["vocab_embed.embedding"] *= 0.1  # so small that the ε of LayerNorm counts
    ema: dict[str, Any] = {
        "": {},
        "in order": {"ema": {"shadow_params": [value for name, value in theirs.items() if "cached" not in name]}},
        "by name": {"ema_model": theirs},
    }
    last = {wrapped + name: 2 * value if averaged else value for name, value in theirs.items()}
    path = older(tmp_path / "older", {"state_dict": last, **ema[averaged]})
    import_checkpoint(path, tmp_path / "run", timesteps=timesteps)
    loaded = load_run(tmp_path / "run", device="cpu")
    tokens, valid, t = batch()
    with torch.no_grad(), loaded.model.evaluating():
        found = loaded.model.model(tokens, valid_BL=valid, t_B=t).logits
        time = {"plain": t, "none": 0 * t, "sigma": -torch.log(1 - 0.999 * t)}[timesteps]
        expected = ddit.reference(theirs, tokens, time, read=valid[:, None, None])[..., :23]
    assert float(expected[valid].std()) > 0.1
    assert torch.allclose(found[valid], expected[valid], atol=3e-5)


def test_the_command_makes_a_run_that_samples_without_data(tmp_path: Path) -> None:
    path, mine = older(tmp_path / "older"), tmp_path / "mine.json"
    (path / "tokenizer.json").rename(mine)
    (path / "tokenizer.json").write_text("{}")
    words = [path, tmp_path / "runs" / "run", "--max-length", 9, "--tokenizer", mine]
    result = CliRunner().invoke(commands.import_checkpoint, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "without averaged weights (EMA); left out: rotary_emb.cos_cached" in result.output
    assert checkpoints.step_of(checkpoints.find(tmp_path / "runs" / "run")) == 90_000
    made = MMLDLM.from_run(tmp_path / "runs" / "run", device="cpu")
    assert made.shape.max_length == 9
    assert [len(text.split()) for text in made.generate(3, length=5, seed=0).texts] == [5, 5, 5]
    scores = made.score(["w1 w2", "w3"])
    assert scores.likelihood == "given_length"
    assert (scores.nll == scores.token_nll).all()


def test_a_training_starts_from_the_imported_weights(tmp_path: Path) -> None:
    import_checkpoint(older(tmp_path / "older"), tmp_path / "imported", timesteps="plain")
    config = json.loads((tmp_path / "imported" / "config.json").read_text())
    shape = parse(DataShape, config["shape"], at="shape")
    spec = task.spec("text_diffusion", model=config["model"], shape=shape, init_from="imported")
    run = task.built(spec, tmp_path)
    assert torch.equal(run.learner.root.model.time.inner.weight, weights()["sigma_map.mlp.0.weight"])
    assert not run.tracker.of("init_differs")
    other = task.spec("text_diffusion", model={**config["model"], "heads": 4}, shape=shape, init_from="imported")
    (event,) = task.built(other, tmp_path).tracker.of("init_differs")
    assert event["fields"] == ["heads: checkpoint has 2, this run 4"]


def test_the_import_states_the_largest_difference_from_the_original_code(tmp_path: Path) -> None:
    clean, t = ddit.clean_and_times()
    noisy = ddit.masked(clean, t[:, None])
    logits = ddit.reference(ddit.weights(), noisy, -torch.log(1 - 0.9 * t))
    loss = ddit.masked_cross_entropy(logits, clean, noisy, t[:, None])
    noise = {"type": "loglinear", "eps": 0.1}
    settings = {"time_conditioning": True, "model": {"n_heads": 2}, "parameterization": "subs", "noise": noise}
    given = {
        "tokens": noisy,
        "clean": clean,
        "sigma": -torch.log(1 - 0.9 * t.double()),
        "logits": logits,
        "loss": loss,
    }
    ddit.proves(tmp_path, settings, **given)
    logits[1, 2, 3] += 0.25
    loss[2, 1] += 6.0
    torch.save(given, tmp_path / "theirs" / "reference.pt")
    found = import_checkpoint(tmp_path / "theirs", tmp_path / "again").differences
    assert found is not None
    assert found.predictions == pytest.approx(0.25, abs=1e-4)
    assert found.bound == pytest.approx(6.0 / LENGTH, abs=1e-4)


def test_a_lightning_checkpoint_gives_its_configuration_and_averages_without_its_classes(tmp_path: Path) -> None:
    config = {"model": {"n_heads": 2, "length": 9}, "time_conditioning": False, "optim": {"lr": 3e-4}}
    last = {name: value for name, value in ddit.weights().items() if "rotary" not in name}
    tied = last["output_layer.linear.weight"] = last["vocab_embed.embedding"]
    averages = [2 * value for name, value in last.items() if name != "output_layer.linear.weight"]
    content = {
        "state_dict": {f"backbone.{name}": value for name, value in last.items()},
        "ema": {"shadow_params": averages},
        "hyper_parameters": {"config": OmegaConf.create(config), "tokenizer": Tokenizer(BPE())},
    }
    path = folder(tmp_path / "lightning", content, {}, name="last.ckpt")
    (path / "config.yaml").unlink()
    assert import_checkpoint(path, tmp_path / "run").averaged
    made = MMLDLM.from_run(tmp_path / "run", device="cpu")
    assert made.shape.max_length == 9
    for name, factor in (("ema", 2), ("model", 1)):
        head = saved(tmp_path / "run", name)["model.text_head.linear.weight"]
        assert torch.allclose(head[: ddit.MASK], factor * tied[: ddit.MASK])
    import_checkpoint(path, tmp_path / "timed", timesteps="sigma")
    assert json.loads((tmp_path / "timed/config.json").read_text())["model"]["time_factor"] == 1.0


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        ({"model": {"register_tokens": 4}}, {}, "register_tokens"),
        ({"algo": {"name": "mdlm", "T": 1000}}, {}, "algo.T"),
        ({"algo": {"causal_attention": True}}, {}, "causal_attention"),
        ({"noise": {"type": "cosine"}}, {}, "noise.type"),
        ({"algo": {"name": "mdlm", "parameterization": "epsilon"}}, {}, "epsilon"),
        ({"graph": {"type": "unheard"}}, {}, "graph.type"),
        ({}, {"heads": 3}, "heads"),
        ({}, {"heads": 4}, "8"),
        ({}, {"heads": 0}, "--heads"),
        ({}, {"max_length": 10**12}, "--max-length"),
    ],
)
def test_keys_and_options_without_a_meaning_here_are_refused_by_their_names(
    settings: dict[str, Any], options: dict[str, Any], named: str, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    path = folder(tmp_path / "theirs", ddit.weights(), settings)
    with refuses(CheckpointError, named):
        import_checkpoint(path, tmp_path / "run", **{"timesteps": "none", "heads": 2, **options})


def test_an_id_that_the_checkpoint_has_no_row_for_is_never_written() -> None:
    bias = _fitted(torch.zeros(5), torch.Size([7]), name="bias", added=2, source=Path())
    assert bias.softmax(dim=0)[5:].tolist() == [0, 0]
    assert head_dim_of({"rotary_emb.inv_freq": torch.ones(4)}) == 8


def test_the_special_token_with_the_id_of_the_mask_becomes_the_mask() -> None:
    (base := Tokenizer(BPE())).add_special_tokens(["<|endoftext|>", "</think>", "x"])
    assert _with_mask(base, 1).get_vocab() == {"[PAD]": 0, "[MASK]": 1, "x": 2}


def test_the_schedule_and_references_are_those_of_the_configuration() -> None:
    ends = {"noise.sigma_min": 0.1, "noise.sigma_max": 9.0, "noise.eps": 0.2}
    assert schedule_of({"noise.type": "geometric", **ends}) == {"kind": "geometric", "sigma_min": 0.1, "sigma_max": 9.0}
    assert schedule_of({"algo.noise_schedule.name": "geometric"}) == {"kind": "geometric"}
    assert schedule_of(ends) == {"kind": "log_linear", "epsilon": 0.2}
    assert flat({"model": {"length": "${data.length}", "n": "${no}"}, "data": {"length": 7}})["model.length"] == 7


# -- export and import again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OBJECTIVES.core)
def test_export_and_import_return_the_same_bits(kind: str, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    run = write_run(tmp_path / "run", model=CASES.models[kind], objective={"kind": kind})
    write_model_pt(source_of(run, tmp_path / "out"), tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    assert equal(saved(tmp_path / "again"), saved(run, "ema"))
    load_run(tmp_path / "again", device="cpu")  # also compares the identity
    with pytest.raises(CheckpointError, match="--heads"):
        import_checkpoint(older(tmp_path / "older"), tmp_path / "other", like=run, heads=2)
    write_model_pt(source_of(run, tmp_path / "last", use_ema=False), tmp_path / "last")
    assert (
        json.loads((tmp_path / "last" / "training_state.json").read_text()).items()
        >= {"step": 3, "weights": "last"}.items()
    )
    import_checkpoint(tmp_path / "last" / "model.pt", tmp_path / "like", like=run)
    assert equal(saved(tmp_path / "like"), saved(run))
    with refuses(CheckpointError, "out"):
        source_of(run, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with contextlib.chdir(tmp_path / "empty"), pytest.raises(CheckpointError, match="working directory"):
        source_of(run, Path())


# -- what is refused ---------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def flip(file: Path) -> None:
    """Change a byte of the weights, which is still a finite number."""
    content, weight = file.read_bytes(), weights()["sigma_map.mlp.0.weight"].numpy().tobytes()
    at = content.index(weight)
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no weights": lambda path: (path / "model.pt").unlink(),
    "no file of PyTorch": lambda path: (path / "model.pt").write_bytes(b"\x80\x04x"),
    "cut": lambda path: (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:5000]),
    "other bytes": lambda path: flip(path / "model.pt"),
    "code": lambda path: (path / "model.pt").write_bytes(pickle.dumps({"a": Evil()})),
    "NaN": lambda path: torch.save(
        weights() | {"sigma_map.mlp.0.bias": torch.full((C,), torch.nan)}, path / "model.pt"
    ),
    "a name lacks": lambda path: torch.save(dict([*weights().items()][1:]), path / "model.pt"),
    "an unknown name": lambda path: torch.save(weights() | {"label_map.weight": torch.ones(2)}, path / "model.pt"),
    "another shape": lambda path: torch.save(
        weights() | {"blocks.0.attn_qkv.weight": torch.ones(9, D)}, path / "model.pt"
    ),
    "no matrix": lambda path: torch.save(weights() | {"vocab_embed.embedding": torch.ones(3)}, path / "model.pt"),
    "one name twice": lambda path: torch.save(
        weights() | {"module.sigma_map.mlp.0.bias": torch.zeros(C)}, path / "model.pt"
    ),
    "NaN in an average": lambda path: torch.save(
        {
            "state_dict": weights(),
            "ema": {"shadow_params": [each * torch.nan for name, each in weights().items() if "cached" not in name]},
        },
        path / "model.pt",
    ),
    "too many tokens": lambda path: torch.save(weights(23 + 128), path / "model.pt"),
    "too few tokens": lambda path: torch.save(weights(5), path / "model.pt"),
    "no JSON in the metadata": lambda path: (
        save_file(weights(), path / "best_ema.safetensors", {"config_json": "{"}) or (path / "model.pt").unlink()
    ),
    "averages without names": lambda path: torch.save({"model": weights(), "ema_model": [1]}, path / "model.pt"),
    "another mask": lambda path: (path / "config.yaml").write_text("model: {n_heads: 2, mask_token_id: 3}"),
    "names of nobody": lambda path: torch.save({"a.0.b": torch.ones(1)}, path / "model.pt"),
    "averages of another model": lambda path: torch.save(
        {"state_dict": weights(), "ema": {"shadow_params": [torch.ones(3)]}}, path / "model.pt"
    ),
    "no tensors": lambda path: torch.save({"a": 1}, path / "model.pt"),
    "another process": lambda path: (path / "config.yaml").write_text("model: {diffusion_process: other}"),
    "no reference": lambda path: torch.save({"tokens": torch.ones(2, 3)}, path / "reference.pt"),
    "no settings": lambda path: (path / "config.yaml").unlink(),
    "no YAML": lambda path: (path / "config.yaml").write_text("a: [\nb"),
    "no mapping": lambda path: (path / "config.yaml").write_text("- 1"),
    "YAML with code": lambda path: (path / "config.yaml").write_text("!!python/object/apply:os.system [ls]"),
    "no JSON": lambda path: (path / "state.json").write_text("{"),
    "no tokenizer": lambda path: (path / "tokenizer.json").unlink(),
    "a run of that name": lambda path: (path.parent / "run").mkdir() or (path.parent / "run" / "x").write_text(""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_leaves_no_run(damage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = older(tmp_path / "older")
    DAMAGES[damage](path)
    with pytest.raises(CheckpointError) as raised:
        import_checkpoint(path, tmp_path / "run")
    assert 20 < len(str(raised.value)) < 1500
    assert "executed" not in capfd.readouterr().out
    assert not (tmp_path / "run" / "config.json").exists()
