"""Checkpoints of other trainers: the same logits here, the same bits after an export, and nothing of a damaged file."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.inference.runs import tokenizer
from tests.training import task
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm import MMLDLM
from mm_ldlm.core import CheckpointError, parse
from mm_ldlm.extras.foreign_checkpoints import commands
from mm_ldlm.extras.foreign_checkpoints.exporting import write_model_pt
from mm_ldlm.extras.foreign_checkpoints.importing import import_checkpoint
from mm_ldlm.inference.exporting import source_of
from mm_ldlm.inference.loading import load_run
from mm_ldlm.models.base import DataShape
from mm_ldlm.training import loop
from mm_ldlm.training.checkpoints import folder

D, C, HEADS, DEPTH, LENGTH, WORDS = 16, 8, 2, 2, 12, 20
ROWS = 64
"""Rows of the embedding: the vocabulary of 23 tokens, rounded"""


def weights(rows: int = ROWS) -> dict[str, Tensor]:
    """Draw weights of MDLM's DiT, under its names."""
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (rows, D), "output_layer.norm_final.weight": (D,),
        "rotary_emb.cos_cached": (1, LENGTH, 3, 1, D // HEADS),
    }  # fmt: skip
    linears = {"sigma_map.mlp.0": (C, 256), "sigma_map.mlp.2": (C, C), "output_layer.linear": (rows, D),
               "output_layer.adaLN_modulation": (2 * D, C)}  # fmt: skip
    for block in (f"blocks.{n}." for n in range(DEPTH)):
        shapes |= {block + "norm1.weight": (D,), block + "norm2.weight": (D,), block + "attn_qkv.weight": (3 * D, D),
                   block + "attn_out.weight": (D, D)}  # fmt: skip
        linears |= {block + "mlp.0": (4 * D, D), block + "mlp.2": (D, 4 * D), block + "adaLN_modulation": (6 * D, C)}
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    draw = torch.Generator().manual_seed(0)
    return {name: 0.2 * torch.randn(shape, generator=draw) + ("norm" in name) for name, shape in shapes.items()}


def reference(w: dict[str, Tensor], tokens: Tensor, valid: Tensor, t: Tensor) -> Tensor:
    """Compute the logits of MDLM's DiT by its definition: LayerNorm with ε = 1e-5, rotary positions by halves."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str, shift: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, [D]) * w[f"{name}.weight"] * (1 + scale) + shift

    frequency = torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    features = torch.cat([torch.cos(t[:, None] * frequency), torch.sin(t[:, None] * frequency)], dim=1)
    c = F.silu(linear(F.silu(linear(features, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
    B, length, E = *tokens.shape, D // HEADS
    angle = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, E, 2) / E)
    cos, sin = (torch.cat([f(angle), f(angle)], dim=1)[None, :, None] for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-two, one], dim=-1) * sin).transpose(1, 2)

    x = w["vocab_embed.embedding"][tokens]
    for block in (f"blocks.{n}." for n in range(DEPTH)):
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = linear(c, block + "adaLN_modulation")[:, None].chunk(6, -1)
        qkv = linear(norm(x, block + "norm1", shift, scale), block + "attn_qkv").view(B, length, 3, HEADS, E)
        q, k, v = turned(qkv[:, :, 0]), turned(qkv[:, :, 1]), qkv[:, :, 2].transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None]).transpose(1, 2)
        x = x + gate * linear(attended.reshape(B, length, D), block + "attn_out")
        inner = F.gelu(linear(norm(x, block + "norm2", mlp_shift, mlp_scale), block + "mlp.0"), approximate="tanh")
        x = x + mlp_gate * linear(inner, block + "mlp.2")
    shift, scale = linear(c, "output_layer.adaLN_modulation")[:, None].chunk(2, -1)
    return linear(norm(x, "output_layer.norm_final", shift, scale), "output_layer.linear")


def older(place: Path, found: Any = None) -> Path:
    """Write the folder of an older trainer: weights, tokenizer, config.yaml and state.json."""
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)} | {"[UNK]": WORDS}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(["[PAD]", "[MASK]", "[UNK]"])
    place.mkdir(parents=True)
    base.save(str(place / "tokenizer.json"))
    torch.save(weights() if found is None else found, place / "model.pt")
    (place / "config.yaml").write_text("model: {diffusion_process: mdlm, n_heads: 2}\n")
    (place / "state.json").write_text('{"step": 90000}')
    return place


def batch() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    valid = torch.arange(7) < torch.tensor([7, 4])[:, None]
    return torch.randint(0, WORDS, (2, 7), generator=draw).masked_fill(~valid, 21), valid, torch.tensor([0.3, 0.9])


def saved(run: Path, name: str = "model") -> dict[str, Tensor]:
    return folder.tensors(folder.find(run), f"{name}.safetensors")


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


# -- import ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timesteps", ["plain", "none"])
@pytest.mark.parametrize("wrapped", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("averaged", [False, True])
def test_an_imported_dit_of_mdlm_has_the_logits_of_its_definition(
    timesteps: Any, wrapped: str, averaged: bool, tmp_path: Path
) -> None:
    theirs = weights()
    theirs["vocab_embed.embedding"] *= 0.1  # so small that the ε of LayerNorm counts
    ema = {"shadow_params": [value for name, value in theirs.items() if "cached" not in name]}
    last = {wrapped + name: 2 * value if averaged else value for name, value in theirs.items()}
    path = older(tmp_path / "older", {"state_dict": last, **({"ema": ema} if averaged else {})})
    import_checkpoint(path, tmp_path / "run", timesteps=timesteps)
    loaded = load_run(tmp_path / "run", device="cpu")
    tokens, valid, t = batch()
    with torch.no_grad(), loaded.model.evaluating():
        found = loaded.model.model(tokens, valid_BL=valid, t_B=t).logits
        expected = reference(theirs, tokens, valid, t if timesteps == "plain" else torch.zeros(2))[..., :23]
    assert float(expected[valid].std()) > 0.1
    assert torch.allclose(found[valid], expected[valid], atol=3e-5)


def test_the_command_makes_a_run_that_samples_without_data(tmp_path: Path) -> None:
    words = [older(tmp_path / "older"), tmp_path / "runs" / "run", "--max-length", 9]
    result = CliRunner().invoke(commands.import_checkpoint, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "left out: rotary_emb.cos_cached" in result.output
    assert folder.step_of(folder.find(tmp_path / "runs" / "run")) == 90_000
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


# -- export and import again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["multimodal", "text_diffusion", "autoregressive"])
def test_export_and_import_return_the_same_bits(
    kind: str, trained: Callable[[str], Path], tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    run = trained(kind)
    write_model_pt(source_of(run, tmp_path / "out"), tmp_path / "out")
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    assert equal(saved(tmp_path / "again"), saved(run, "ema"))
    load_run(tmp_path / "again", device="cpu")  # also compares the identity
    write_model_pt(source_of(run, tmp_path / "last", use_ema=False), tmp_path / "last")
    import_checkpoint(tmp_path / "last" / "model.pt", tmp_path / "like", like=run)
    assert equal(saved(tmp_path / "like"), saved(run))
    with refuses(CheckpointError, "out"):
        source_of(run, tmp_path / "out")


# -- what is refused ---------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no weights": lambda path: (path / "model.pt").unlink(),
    "no file of PyTorch": lambda path: (path / "model.pt").write_bytes(b"\x80\x04x"),
    "cut": lambda path: (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:5000]),
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
    "too few tokens": lambda path: torch.save(weights(5), path / "model.pt"),
    "names of nobody": lambda path: torch.save({"a.0.b": torch.ones(1)}, path / "model.pt"),
    "averages of another model": lambda path: torch.save(
        {"state_dict": weights(), "ema": {"shadow_params": [torch.ones(3)]}}, path / "model.pt"
    ),
    "no tensors": lambda path: torch.save({"a": 1}, path / "model.pt"),
    "another process": lambda path: (path / "config.yaml").write_text("model: {diffusion_process: gidd}"),
    "another conditioning": lambda path: (path / "config.yaml").write_text("time_conditioning: true"),
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


@pytest.mark.parametrize(
    ("options", "named"),
    [({"heads": 3}, "heads"), ({"heads": 4}, "8"), ({"heads": 0}, "--heads"), ({"max_length": 10**12}, "--max-length")],
)
def test_numbers_that_no_model_has_are_refused(
    options: dict[str, Any], named: str, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    path = older(tmp_path / "older")
    with refuses(CheckpointError, named):
        import_checkpoint(path, tmp_path / "run", **options)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[[str], Path]:
    """`trained(kind)` trains two steps of a kind of objective, and returns the folder of the run."""

    def train(kind: str) -> Path:
        made, place = tokenizer(WORDS, LENGTH), tmp_path / "tokenizer"
        made.save(place)
        sizes = {"vocab_size": made.vocab_size, "pad_id": made.pad_id, "mask_id": made.mask_id}
        spec = task.spec(kind, shape=DataShape(**sizes, max_length=LENGTH, fields=task.SHAPE.fields), max_steps=2)
        spec.fingerprints["tokenizer"] = made.fingerprint
        loop.train(task.built(spec, tmp_path, data=task.data(spec, tokenizer=place)))
        (tmp_path / "run" / "config.json").write_text(json.dumps(spec.to_dict()))
        return tmp_path / "run"

    return train
