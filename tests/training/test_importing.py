"""A checkpoint of another trainer becomes a run that samples; a run that is exported and imported has the same bits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from mm_ldlm import MMLDLM
from mm_ldlm.app import console
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.exporting import export_checkpoint
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint, read_names
from mm_ldlm.inference.loading import load_run
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.jsonl import read_events
from mm_ldlm.training.worker import train

D, HEADS, LENGTH, WORDS = 16, 2, 12, 20


def weights(rows: int, *, depth: int = 1) -> dict[str, Tensor]:
    """Weights under the names of MDLM's DiT."""
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (rows, D), "output_layer.norm_final.weight": (D,),
        "rotary_emb.cos_cached": (1, LENGTH, 3, 1, D // HEADS),
    }  # fmt: skip
    linears = {"sigma_map.mlp.0": (8, 256), "sigma_map.mlp.2": (8, 8), "output_layer.linear": (rows, D),
               "output_layer.adaLN_modulation": (2 * D, 8)}  # fmt: skip
    for n in range(depth):
        block = f"blocks.{n}."
        shapes |= {block + "norm1.weight": (D,), block + "norm2.weight": (D,), block + "attn_qkv.weight": (3 * D, D),
                   block + "attn_out.weight": (D, D)}  # fmt: skip
        linears |= {block + "mlp.0": (4 * D, D), block + "mlp.2": (D, 4 * D), block + "adaLN_modulation": (6 * D, 8)}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def older(place: Path, *, rows: int | None = None, specials: tuple[str, ...] = ("[PAD]", "[MASK]", "[UNK]")) -> Path:
    """The folder of an older trainer: weights, tokenizer, config.yaml and state.json."""
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)} | {"[UNK]": WORDS}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(list(specials))
    place.mkdir(parents=True, exist_ok=True)
    base.save(str(place / "tokenizer.json"))
    torch.save(weights(rows or 64), place / "model.pt")
    (place / "config.yaml").write_text("model: {diffusion_process: mdlm, n_heads: 2}\n")
    (place / "state.json").write_text('{"step": 90000}')
    return place


def call(*words: Any) -> Any:
    return CliRunner().invoke(console.commands, [str(word) for word in words])


def test_a_folder_of_an_older_trainer_samples_without_data(tmp_path: Path) -> None:
    result = call("import-checkpoint", older(tmp_path / "older"), tmp_path / "runs" / "run")
    assert result.exit_code == 0, result.output
    assert "19 parameters of the format ddit; left out: rotary_emb.cos_cached" in result.output
    parts = load_run(tmp_path / "runs" / "run", device="cpu")
    assert (parts.step, parts.checkpoint.name) == (90_000, "step-00090000")
    state = folder.document(parts.checkpoint, "training_state.json")["state"]
    assert (state["step"], state["draw"], state["tokens"]) == (90_000, 0, 0)
    made = MMLDLM.from_run(tmp_path / "runs" / "run", device="cpu").generate(3, length=5, seed=0)
    assert [len(text.split()) for text in made.texts] == [5, 5, 5]
    config = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert config["model"]["time_factor"] == 1.0
    assert config["imported"] == {"file": "model.pt", "format": "ddit", "left_out": ["rotary_emb.cos_cached"]}


def test_a_tokenizer_that_lies_elsewhere_is_named(tmp_path: Path) -> None:
    path, elsewhere = older(tmp_path / "older"), tmp_path / "tokenizer.json"
    (path / "tokenizer.json").rename(elsewhere)
    result = call("import-checkpoint", path, tmp_path / "runs" / "run", "--tokenizer", elsewhere)
    assert result.exit_code == 0, result.output
    import_checkpoint(older(tmp_path / "same"), tmp_path / "runs" / "other", Given())
    one, other = (load_run(tmp_path / "runs" / name, device="cpu").tokenizer for name in ("run", "other"))
    assert one.fingerprint == other.fingerprint


def test_mask_follows_the_ids_of_the_tokenizer_as_in_mdlm(tmp_path: Path) -> None:
    """Its vocabulary has one row more than its tokenizer: [MASK]. Ids that it lacks are never written."""
    path = older(tmp_path / "older", rows=WORDS + 2, specials=())
    (path / "config.yaml").unlink()
    import_checkpoint(path, tmp_path / "runs" / "run", Given(timesteps="none"))
    parts = load_run(tmp_path / "runs" / "run", device="cpu")
    assert (parts.tokenizer.mask_id, parts.tokenizer.pad_id, parts.tokenizer.vocab_size) == (21, 22, 23)
    texts = MMLDLM.from_run(tmp_path / "runs" / "run", device="cpu").generate(20, length=6, seed=0).texts
    assert not any("[PAD]" in text or "[MASK]" in text for text in texts)


def test_a_training_starts_from_a_folder_of_an_older_trainer(tmp_path: Path) -> None:
    older(tmp_path / "runs" / "older")
    model = {"kind": "dit", "dim": D, "depth": 1, "heads": HEADS, "conditioning_dim": 8, "mlp_bias": True,
             "mlp_activation": "gelu_tanh", "qk_norm": False, "time_factor": 1.0}  # fmt: skip
    spec = helpers.spec(model=model, objective={"kind": "text_diffusion"}, init_from="older", max_steps=1,
                        optimizer={"warmup_steps": 0, "lr": 1e-9}, checkpoint={"every_steps": 1})  # fmt: skip
    train(spec, root=tmp_path / "runs", data=helpers.data(16))
    found, event = (
        helpers.tensors(tmp_path / "runs" / "run", 1),
        read_events(tmp_path / "runs" / "run" / "training_log.jsonl", "init_format"),
    )
    assert torch.allclose(found["model.time.inner.weight"], weights(64)["sigma_map.mlp.0.weight"], atol=1e-6)
    assert (event[0]["format"], event[0]["left_out"]) == ("ddit", "rotary_emb.cos_cached")


def test_what_the_command_says_comes_before_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    """The table of the rotary positions says 12, config.yaml another length."""
    path = older(tmp_path / "older")
    (path / "config.yaml").write_text("model: {diffusion_process: mdlm, n_heads: 2, length: 9}\n")
    shapes = {}
    for name, said in (("said", Given(max_length=7, timesteps="none")), ("found", Given(timesteps="plain"))):
        import_checkpoint(path, tmp_path / name, said)
        config = json.loads((tmp_path / name / "config.json").read_text())
        shapes[name] = config["shape"]["max_length"], config["model"]["time_conditioning"]
    assert shapes == {"said": (7, False), "found": (LENGTH, True)}


# -- export and import -------------------------------------------------------------------------------------------------


def written_with(place: Path) -> Any:
    """The counters beside an exported model.pt."""
    return json.loads((place / "training_state.json").read_text())


TINY: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2}
CAUSAL: tuple[dict[str, Any], dict[str, Any]] = ({"kind": "causal", **TINY}, {"kind": "autoregressive"})


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        ({"kind": "mmdit", **TINY, "latent_tokens": 2}, {"kind": "multimodal"}),
        pytest.param({"kind": "dit", **TINY}, {"kind": "adaptive_masking"}, marks=pytest.mark.slow),
        pytest.param({"kind": "dit", **TINY, "tied_embeddings": True},
                     {"kind": "text_diffusion", "process": {"kind": "hdlm"}}, marks=pytest.mark.slow),
        pytest.param(*CAUSAL, marks=pytest.mark.slow),
    ],
    ids=lambda kind: kind["kind"],
)  # fmt: skip
def test_export_and_import_return_the_same_bits(
    model: dict[str, Any], objective: dict[str, Any], tmp_path: Path
) -> None:
    helpers.write_stores(tmp_path)
    spec = helpers.planned(tmp_path, model=model, objective=objective, max_steps=2, checkpoint={"every_steps": 2},
                           optimizer={"warmup_steps": 1})  # fmt: skip
    train(spec, root=tmp_path / "runs")
    assert export_checkpoint(tmp_path / "runs" / "run", tmp_path / "out").name == "step-00000002"
    plain = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert not any(name.startswith("model.") for name in plain)
    state = folder.document(folder.find(tmp_path / "runs" / "run"), "training_state.json")["state"]
    counters = {name: state[name] for name in ("step", "epoch", "batch_in_epoch", "examples", "tokens")}
    assert min(counters["step"], counters["examples"], counters["tokens"]) > 0
    assert written_with(tmp_path / "out") == {**counters, "weights": "averaged"}
    own = tmp_path / "runs" / "run" / "checkpoints" / "step-00000002"
    for name, named in (("of_checkpoint", own), ("of_newest", tmp_path / "runs")):
        assert export_checkpoint(named, tmp_path / name) == own
        assert (tmp_path / name / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
    import_checkpoint(tmp_path / "out", tmp_path / "again", Given())
    averaged = helpers.tensors(tmp_path / "runs" / "run", 2, "ema")
    assert helpers.same_bits(helpers.tensors(tmp_path / "again", 2), averaged)
    load_run(tmp_path / "again", device="cpu")  # also compares the identity
    import_checkpoint(tmp_path / "out" / "model.pt", tmp_path / "like", Given(like=tmp_path / "runs" / "run"))
    assert helpers.same_bits(helpers.tensors(tmp_path / "like", 2), averaged)
    export_checkpoint(tmp_path / "again", tmp_path / "second")
    second = torch.load(tmp_path / "second" / "model.pt", weights_only=True)
    assert helpers.same_bits(plain, second)
    assert [value.dtype for value in plain.values()] == [second[name].dtype for name in plain]
    export_checkpoint(tmp_path / "runs" / "run", tmp_path / "last", checkpoint="step-00000002", use_ema=False)
    assert written_with(tmp_path / "second")["weights"] == "last", "an imported run has no averages"
    assert written_with(tmp_path / "last") == {**counters, "weights": "last"}
    last = helpers.tensors(tmp_path / "runs" / "run", 2)
    assert helpers.same_bits({f"model.{k}".replace("model.objective.", "objective."): v for k, v in legacy.read(
        tmp_path / "last").tensors.items()}, last)  # fmt: skip
    counters = folder.document(folder.find(tmp_path / "runs" / "run"), "training_state.json")["state"]
    assert (counters["step"], counters["examples"] > 2, counters["tokens"] > 2) == (2, True, True)
    kept = {name: counters[name] for name in ("step", "epoch", "batch_in_epoch", "examples", "tokens")}
    for name, of in (("out", "averaged"), ("last", "last")):
        state = json.loads((tmp_path / name / "training_state.json").read_text())
        assert state == {**kept, "weights": of}
    assert json.loads((tmp_path / "second" / "training_state.json").read_text())["weights"] == "last", (
        "it has no others"
    )


def test_a_mapping_of_names_and_a_run_of_the_same_model(tmp_path: Path) -> None:
    model, objective = CAUSAL
    helpers.write_stores(tmp_path)
    spec = helpers.planned(tmp_path, model=model, objective=objective, max_steps=1, checkpoint={"every_steps": 1},
                           optimizer={"warmup_steps": 0})  # fmt: skip
    train(spec, root=tmp_path / "runs")
    theirs = {
        name.removeprefix("model.").replace("blocks.", "layer."): value + 1
        for name, value in helpers.tensors(tmp_path / "runs" / "run", 1).items()
    }
    torch.save({**theirs, "extra": torch.ones(1)}, tmp_path / "weights.pt")
    (tmp_path / "names.yml").write_text(
        "names:\n  extra: null\n"
        + "".join(
            f"  {json.dumps(name)}: {json.dumps(name.replace('layer.', 'blocks.'))}\n"
            for name in theirs
            if "layer" in name
        )
    )
    result = call(
        "import-checkpoint", tmp_path / "weights.pt", tmp_path / "made", "--like", tmp_path / "runs" / "run", "--names",
        tmp_path / "names.yml",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "left out: extra" in result.output
    for name, value in helpers.tensors(tmp_path / "made", 0).items():
        assert torch.equal(value, theirs[name.removeprefix("model.").replace("blocks.", "layer.")]), name
    (tmp_path / "names.yml").write_text("names: {'*': null}\ninitial: ['*']\n")
    import_checkpoint(
        tmp_path / "weights.pt", tmp_path / "none",
        Given(like=tmp_path / "runs" / "run", names=read_names(tmp_path / "names.yml")),
    )  # fmt: skip
    assert all(bool(torch.isfinite(value).all()) for value in helpers.tensors(tmp_path / "none", 0).values())


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "given_", "message"),
    [
        (lambda p: None, {"heads": 3}, "dim must be divisible by heads"),
        (lambda p: None, {"heads": 4}, "expected heads of dimension 4 .* found 8"),
        (lambda p: None, {"heads": 0}, "--heads from 1 to 65,536, found 0"),
        (lambda p: None, {"max_length": 10**12}, "--max-length from 1 to 65,536"),
        (lambda p: (p / "config.yaml").unlink(), {}, "expected --timesteps"),
        (lambda p: (p / "config.yaml").write_text("time_conditioning: true"), {}, "embeds σ"),
        (lambda p: (p / "config.yaml").write_text("model: {diffusion_process: gidd}"), {}, "found 'gidd'"),
        (lambda p: (p / "config.yaml").write_text("a: [\nb"), {}, r"config\.yaml, line 2: cannot be read as YAML"),
        (lambda p: (p / "config.yaml").write_text("- 1"), {}, "expected a mapping"),
        (lambda p: (p / "config.yaml").write_bytes(b"\xff\xfe"), {}, "cannot be read as YAML"),
        (lambda p: (p / "config.yaml").write_text("!!python/object/apply:os.system [ls]"), {}, "cannot be read"),
        (lambda p: (p / "tokenizer.json").unlink(), {}, "expected tokenizer.json or vocab.txt"),
        (lambda p: (p / "tokenizer.json").write_text("{}"), {}, "is not a tokenizer.json"),
        (lambda p: (p / "state.json").write_text("{"), {}, "not readable as JSON"),
        (lambda p: torch.save(weights(5), p / "model.pt"), {}, "expected 23 tokens"),
        (lambda p: torch.save(weights(9) | {"vocab_embed.embedding": torch.ones(3)}, p / "model.pt"), {}, "a matrix"),
        (lambda p: torch.save({"a.0.b": torch.ones(1)}, p / "model.pt"), {}, r"known format \(a\.0\.b\).*--like"),
        (lambda p: (p / "model.pt").unlink(), {}, "expected one of the files model.pt"),
        (lambda p: shutil.copytree(p, p.parent / "runs" / "run"), {}, "expected a new folder"),
        (lambda p: None, {"like": Path("none")}, "no complete checkpoint"),
        (lambda p: None, {"like": Path("none"), "heads": 2}, "--heads are read only for a checkpoint"),
        (lambda p: (p.parent / "n.yml").write_text("names: {a: b}"), {"names": "n.yml"}, "Give it by --like RUN"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(harm: Any, given_: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = older(tmp_path / "older")
    harm(path)
    if "names" in given_:
        given_ = {"names": tmp_path / given_["names"]}
    words = [word for key, value in given_.items() for word in (f"--{key.replace('_', '-')}", value)]
    result = call("import-checkpoint", path, tmp_path / "runs" / "run", *words)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.strip().splitlines()) <= 3
    assert re.search(message, result.output), result.output
    assert not (tmp_path / "runs" / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b", "expected `names:`"),
        ("names: [a]", "expected `names:`"),
        ("names: {1: b}", "expected names of parameters as texts"),
        ("names: {a: 1}", "expected names of parameters as texts"),
        ("names: {'****': null}", "at most three"),
        ("names: {a: b}\ninitial: b", "expected `names:`"),
        ("names: {a: b}\nmore: 1", "expected `names:`"),
        ("names: {a: b\n", "line 2: cannot be read as YAML"),
    ],
)
def test_a_mapping_of_another_form_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "n.yml").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_names(tmp_path / "n.yml")


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_file_is_a_mapping_or_gets_a_sentence(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yml"
    file.write_bytes(content)
    refused, found = "", None
    try:
        found = read_names(file)
    except CheckpointError as error:
        refused = str(error)
    assert isinstance(found.names, dict) if found else refused.startswith(str(file))
    assert len(refused.splitlines()) <= 3


def test_an_export_never_replaces_a_folder(tmp_path: Path) -> None:
    import_checkpoint(older(tmp_path / "older"), tmp_path / "runs" / "run", Given())
    result = call("export-checkpoint", tmp_path / "runs" / "run", tmp_path / "older")
    assert result.exit_code == 1
    assert "expected a new folder" in result.output
    assert call("export-checkpoint", tmp_path / "none", tmp_path / "x").exit_code == 1
    assert not (tmp_path / "x").exists()
    assert folder.find(tmp_path / "runs" / "run")
