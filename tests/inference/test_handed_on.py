"""Every argument of the Python interface and every option of a command arrives where the work is done.

The functions below are replaced by recorders, and every value occurs only once.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.app import console
from mm_ldlm.core.errors import FingerprintError, SamplingError
from mm_ldlm.extras.foreign_checkpoints import exporting, importing
from mm_ldlm.families.classification import requests as classifying
from mm_ldlm.families.images import requests as images
from mm_ldlm.inference import api, editing, embedding, inverting, loading, memory, scoring
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.capabilities import USES, Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

LONGEST, DIM = 9, 2
SHAPE = DataShape(vocab_size=23, pad_id=20, mask_id=21, max_length=LONGEST, latent_dim=DIM, image_size=(1, 2, 1))
ABLE = Capabilities(uses=frozenset(USES), reads_latents=True, trained_as="everything", likelihood="bound",
                    joint_orders=("together", "latent_first", "text_first"))  # fmt: skip


class Words:
    """Id 5 is the word w5."""

    vocab_size, pad_id, mask_id, unk_id = 23, 20, 21, 22

    def encode(self, texts: Any) -> list[list[int]]:
        return [[int(word[1:]) for word in text.split()] for text in texts]


class Shift:
    typical = None

    def standardise(self, raw: Any) -> Any:
        return np.asarray(raw, np.float64) - 1


class Silent:
    """A model that is never asked."""

    shape, device, dim, process, has_length, latents_need_lengths = SHAPE, torch.device("cpu"), DIM, None, True, False

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 2)

    def default_sampler(self, *, conditional: bool) -> Any:
        return text_sampler("confidence", steps=3 if conditional else 7)


def model(**options: Any) -> Any:
    fake: Any = Silent()
    encoder = SimpleNamespace(dim=DIM, encode=lambda texts: np.ones((len(texts), DIM), np.float32))
    return MMLDLM(fake, ABLE, Words(), Shift(), encoder, image_normaliser=Shift(), **options)  # type: ignore[arg-type]


# -- the methods -------------------------------------------------------------------------------------------------------

METHODS: dict[str, tuple[Any, str, dict[str, str]]] = {
    "invert": (inverting, "invert", {}),
    "generate": (inverting, "generate", {}),
    "interpolate": (inverting, "interpolate", {}),
    "infill": (editing, "infill", {}),
    "edit": (editing, "edit", {}),
    "embed": (embedding, "embed", {}),
    "embed_tokens": (embedding, "embed", {}),
    "score": (scoring, "score", {}),
    "score_tokens": (scoring, "score", {}),
    "classify": (classifying, "classify", {}),
    "classify_tokens": (classifying, "tokens", {}),
    "classify_latents": (classifying, "latents", {"latents": "given"}),
    "neighbours": (editing, "neighbours", {"latents": "latents_nd"}),
}
"""Method → the function that does its work, and the arguments that have another name there"""
REAL: dict[str, Any] = {"k": 3}
"""Arguments that the method itself checks"""


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_a_method_arrives(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, renamed = METHODS[method]
    signature, made = inspect.signature(getattr(module, name)), model()
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(
        module, name, lambda *given, **named: calls.append(signature.bind(*given, **named).arguments) or "made"
    )
    monkeypatch.setattr(api.inputs, "check_latents", lambda given, *, dim: given)
    given: dict[str, Any] = {
        each: SimpleNamespace(name=each) for each in inspect.signature(getattr(made, method)).parameters
    }
    given |= {each: value for each, value in REAL.items() if each in given}
    texts_are_read = method in ("embed", "score")
    if texts_are_read:
        given |= {"texts": ["w1 w2", "w3"]} | ({"too_long": "truncate"} if method == "embed" else {})
    assert getattr(made, method)(**given) == "made"
    (found,) = calls
    if "engine" in signature.parameters:
        assert found.pop("engine") is made._engine
    if texts_are_read:
        assert found.pop("ids") == [[1, 2], [3]]
        given.pop("too_long", None)
    assert found == {renamed.get(name, name): value for name, value in given.items()}


def test_every_method_that_works_is_in_the_table() -> None:
    public = {name for name, value in vars(MMLDLM).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public == {*METHODS, "encode"}


@pytest.mark.parametrize(("too_long", "ids"), [("truncate", [[1] * LONGEST]), ("refuse", None)])
def test_long_texts_are_truncated_where_that_is_asked(too_long: Any, ids: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(embedding, "embed", lambda engine, ids, texts, **_: calls.append(ids))
    monkeypatch.setattr(classifying, "tokens", lambda engine, ids, texts, *, second: calls.append(ids))
    made = model()
    for method in (made.embed, made.classify):
        if ids is None:
            with pytest.raises(SamplingError, match="has 10 tokens, but the model reads at most 9"):
                method("w1 " * 10, too_long=too_long)
        else:
            method("w1 " * 10, too_long=too_long)
    assert calls == ([] if ids is None else [ids, ids])


def test_a_run_is_loaded_as_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    parts = SimpleNamespace(
        model=Silent(), capabilities=ABLE, tokenizer=Words(), normaliser=Shift(), image_normaliser=Shift(),
        load_encoder=lambda: None, no_encoder="gone",
    )  # fmt: skip
    monkeypatch.setattr(api, "load_run", lambda path, **named: calls.append((path, named)) or parts)
    made = MMLDLM.from_run("run", checkpoint="best", use_ema=False, device="cpu", batch_tokens=777)
    assert calls == [("run", {"checkpoint": "best", "use_ema": False, "device": "cpu"})]
    same_parts(made, parts, batch_tokens=777)
    edge = made._engine.edge
    assert (edge.loaded, edge.load_encoder, edge._no_encoder) == (None, parts.load_encoder, "gone")


def test_a_copy_has_every_part_of_the_model() -> None:
    made = model(batch_tokens=777, load_encoder=lambda: None, no_encoder="gone")
    made.parts = SimpleNamespace(name="parts")
    for copied in (copy.copy(made), copy.deepcopy(made)):
        same_parts(copied, made, batch_tokens=777)
        assert copied.parts is made.parts
        assert copied.model is not made.model
        edges = [
            (edge.loaded, edge.load_encoder, edge._no_encoder) for edge in (made._engine.edge, copied._engine.edge)
        ]
        assert edges[0][:2] == edges[1][:2]


def same_parts(made: Any, given: Any, *, batch_tokens: int) -> None:
    """Compare every part of a model, wherever it is kept, with what it was made from."""
    engine = made._engine
    for name in ("capabilities", "tokenizer", "normaliser", "image_normaliser"):
        assert getattr(made, name) is getattr(given, name), name
    for place in (engine, engine.edge):
        assert place.tokenizer is given.tokenizer
    assert engine.edge.normaliser is given.normaliser
    assert engine.capabilities is given.capabilities
    assert {made.batch_tokens, engine.writer.batch_tokens, engine.latents.batch_tokens} == {batch_tokens}
    assert {id(each) for each in (made.model, engine.model, engine.writer.model, engine.latents.model)} == {
        id(made.model)
    }
    pictures = made.images
    assert (pictures.normaliser, pictures.tokenizer) == (given.image_normaliser, given.tokenizer)
    assert pictures._captions.batch_tokens == batch_tokens * LONGEST // (LONGEST + DIM // images.VALUES_PER_TOKEN)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_evaluated_without_dropout_and_gradients_and_is_left_as_it_was(training: bool) -> None:
    holder: Any = SimpleNamespace(model=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()).train(training))
    for fault in (None, ValueError):
        with contextlib.suppress(ValueError), GenerativeModel.evaluating(holder):
            assert [part.training for part in holder.model.modules()] == [False] * 3
            assert not torch.is_grad_enabled()
            if fault:
                raise fault
        assert [part.training for part in holder.model.modules()] == [training] * 3
        assert torch.is_grad_enabled()


LOADED, LOADER = SimpleNamespace(dim=DIM, encode=None), lambda: SimpleNamespace(dim=DIM)


@pytest.mark.parametrize(
    ("encoder", "load", "reason", "expected"),
    [
        (LOADED, None, None, None), (None, LOADER, None, None), (LOADED, LOADER, "gone", None),
        (None, LOADER, "gone", None), (None, None, "gone", "gone"),
        (None, None, None, "this model was built without one."),
    ],
)  # fmt: skip
def test_there_is_no_encoder_where_none_is_given_and_none_can_be_loaded(
    encoder: Any, load: Any, reason: str | None, expected: str | None
) -> None:
    fake: Any = Silent()
    made: Any = MMLDLM(fake, ABLE, Words(), Shift(), encoder, load_encoder=load, no_encoder=reason)  # type: ignore[arg-type]
    assert made.no_encoder == expected
    if expected is None:
        first = made.encoder
        assert first is (encoder or first) is made.encoder, "it is loaded once"
        assert made.no_encoder is None
    else:
        with pytest.raises(SamplingError, match="expected the encoder that made the latents"):
            _ = made.encoder


@pytest.mark.parametrize(("expected", "asked"), [("0123", "0123"), ("", None)])
def test_the_encoder_of_a_run_is_loaded_on_its_device_and_is_the_one_of_its_latents(
    expected: str, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    found = SimpleNamespace(fingerprint="0123")
    monkeypatch.setattr(loading, "parse_encoder", lambda config: ("parsed", config["name"]))
    monkeypatch.setattr(loading, "no_encoder", lambda config: None)
    monkeypatch.setattr(loading, "load_encoder", lambda *given, **named: calls.append((given, named)) or found)
    load = loading._encoder_loader({"name": "minilm"}, expected, torch.device("cuda:3"))
    assert load is not None
    assert not calls, "when it is first needed"
    assert load() is found
    assert calls == [((("parsed", "minilm"),), {"device": "cuda:3", "expected": asked})]
    found.fingerprint = "4567"
    if expected:
        with pytest.raises(FingerprintError, match=r"with fingerprint 0123, .* 'minilm' with 4567"):
            load()
    else:
        assert load() is found
    assert loading._encoder_loader({}, expected, torch.device("cpu")) is None


@pytest.mark.parametrize("order", [None, "together", "text_first", "latent_first"])
def test_a_length_is_checked_for_its_use_and_order(order: str | None) -> None:
    calls: list[Any] = []
    capabilities: Any = SimpleNamespace(
        process=None, refuse_length=lambda *given, **named: calls.append((given, named)) or "it cannot"
    )
    made = model()._engine
    made.capabilities = capabilities
    with pytest.raises(SamplingError, match="it cannot"):
        made.length(5, "unconditional", sampler=None, order=order)
    assert calls == [((5, "unconditional"), {"order": order or ""})]


# -- estimates of memory -----------------------------------------------------------------------------------------------

LATENTS = np.ones((3, DIM))


@pytest.mark.parametrize(
    ("call", "texts", "tokens", "numbers"),
    [
        (lambda m: m.invert(LATENTS), 3, LONGEST, 4 * DIM),
        (lambda m: m.invert(LATENTS, length=5), 3, 5, 4 * DIM),
        (lambda m: m.invert(LATENTS, length="top-2", samples=7), 21, LONGEST, 4 * DIM),
        (lambda m: m.invert(LATENTS, search=SearchConfig(candidates=4, beam=3)), 3 * 14, LONGEST, 4 * DIM),
        (lambda m: m.interpolate(LATENTS, 2 * LATENTS, steps=6), 18, LONGEST, 4 * DIM),
        (lambda m: m.generate(8, length=5, latent_sampler=latent_sampler("ddim", draws=6)), 8, 5, 9 * DIM),
        (lambda m: m.embed(["w1"] * 4, draws=5), 4, LONGEST, 13 * DIM),
        (lambda m: m.images.draw(["w1"] * 4), 4, LONGEST, 5 * DIM),
        (lambda m: m.images.caption(np.ones((4, 1, 2, 1)), length=5), 4, LONGEST, 5 * DIM),
        (lambda m: m.images.generate(6), 6, LONGEST, 5 * DIM),
        (lambda m: m.score(["w1"] * 4, draws=6), None, None, scoring.STATISTICS * 4 * 6),
    ],
)
def test_what_a_request_needs_is_estimated_before_it(
    call: Any, texts: int | None, tokens: int | None, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    found: list[Any] = []

    def refuse(count: int, *, tokens: int | None = None, numbers: int | None = None, what: str) -> None:
        found.append((None, None, count) if tokens is None else (count, tokens, numbers))
        raise Asked(what)

    monkeypatch.setattr(memory, "refuse_texts", refuse)
    monkeypatch.setattr(memory, "refuse_numbers", refuse)
    with pytest.raises(Asked):
        call(model())
    assert found == [(texts, tokens, numbers)]


# -- images ------------------------------------------------------------------------------------------------------------


def test_every_argument_of_a_task_on_images_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, seen = model().images, {}
    written = SimpleNamespace(tokens=((1,),), log_probs=[0.0], model_calls=[1], encoder_calls=[0])
    monkeypatch.setattr(pictures.tokenizer, "decode_batch", lambda rows: ["w1"], raising=False)
    monkeypatch.setattr(pictures, "_pixels", lambda vectors: ("pixels of", vectors))

    def record(place: Any, name: str, result: Any) -> None:
        monkeypatch.setattr(place, name, lambda *given, **named: seen.__setitem__(name, (given, named)) or result)

    record(pictures._images, "given_texts", SimpleNamespace(mean="mean", model_calls=[4]))
    record(pictures._images, "generate", (written, "vectors"))
    record(pictures._captions, "lengths", [2])
    record(pictures._captions, "write", written)
    for draw in (
        lambda: pictures.draw(["w1 w2"], sampler={"kind": "ddim", "eta": 0.5}, steps=5, seed=3),
        lambda: pictures.draw_tokens([(1, 2)], ["w1 w2"], sampler={"kind": "ddim", "eta": 0.5}, steps=5, seed=3),
    ):
        made = draw()
        assert seen.pop("given_texts") == (
            ([(1, 2)],), {"config": latent_sampler("ddim", eta=0.5, steps=5), "seed": 3}
        )  # fmt: skip
        assert (made.pixels, made.captions, made.model_calls) == (("pixels of", "mean"), ("w1 w2",), [4])

    pictures.caption(np.full((1, 1, 2, 1), 0.5), sampler="margin", steps=6, length=4, seed=8)
    (length, vectors_nd), named = seen["lengths"]
    assert (length, vectors_nd.tolist(), named) == (4, [[-0.5, -0.5]], {"rows": 1, "seed": 8})
    (canvases,), named = seen["write"]
    assert canvases == [[21, 21]]
    assert (named["sampler"], named["seed"]) == (text_sampler("margin", steps=6), 8)
    assert named["latents_nd"] is vectors_nd
    pictures.caption(np.full((1, 1, 2, 1), 0.5))
    assert seen["write"][1]["sampler"] == text_sampler("confidence", steps=3), "the default given an image"
    assert (seen["lengths"][0][0], seen["write"][1]["seed"]) == ("argmax", 0)

    made = pictures.generate(2, steps=6, length=4, seed=8)
    given, named = seen["generate"]
    config = (text_sampler("ancestral", steps=6), latent_sampler("ddim", steps=6))
    assert (given, named) == ((2, "together", pictures._captions, *config, 4, 8), {})
    assert (made.pixels, made.captions, made.model_calls) == (("pixels of", "vectors"), ("w1",), [1])


# -- the commands ------------------------------------------------------------------------------------------------------


def test_every_option_of_invert_and_embed_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    base = text_sampler("confidence", steps=3)

    class Recorded:
        model = SimpleNamespace(default_sampler=lambda *, conditional: base if conditional else None)

        def invert(self, *given: Any, **named: Any) -> Any:
            seen["invert"] = (given, named)
            return SimpleNamespace(texts=["w1"])

        def embed(self, *given: Any, **named: Any) -> Any:
            seen["embed"] = (given, named)
            return SimpleNamespace(latents=np.ones((1, 2)), __len__=lambda: 1)

    def from_run(*given: Any, **named: Any) -> Any:
        seen["from_run"] = (given, named)
        return Recorded()

    monkeypatch.setattr(MMLDLM, "from_run", from_run)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    chosen = ("--run", run, "--checkpoint", "best", "--device", "cpu", "--seed", "6")
    loaded = ((str(run),), {"checkpoint": "best", "device": "cpu"})
    options = ("--samples", 5, "--keep", "all", "--temperature", 0.25, "--steps", 7, "--cosine")
    called("invert", "a.npy", *options, *chosen)
    assert seen["from_run"] == loaded
    assert seen["invert"] == (
        (Path("a.npy"),),
        {"sampler": base.override(temperature=0.25), "steps": 7, "reembed": True, "seed": 6, "samples": 5,
         "keep": "all"},
    )  # fmt: skip
    called("invert", "a.npy", "--run", run)
    assert seen["from_run"] == ((str(run),), {"checkpoint": "latest", "device": None})
    assert seen["invert"][1] == {
        "sampler": None, "steps": None, "reembed": False, "seed": 0, "samples": 1, "keep": "best"
    }  # fmt: skip
    (tmp_path / "a.txt").write_text("w1\n")
    CliRunner().invoke(console.commands, ["embed", str(tmp_path / "a.txt"), str(tmp_path / "a.npy"), "--draws", "9",
                                          "--steps", "7", *map(str, chosen)])  # fmt: skip
    assert seen["from_run"] == loaded
    assert seen["embed"] == ((["w1"],), {"steps": 7, "draws": 9, "seed": 6})


def test_a_table_of_texts_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made(SimpleNamespace):
        def __len__(self) -> int:
            return 2

    made = Made(
        texts=["a\tb\n c", "d  e"], log_probs=np.array([-12.34567, -0.5]), cosines=None, rows=None, samples=None
    )
    monkeypatch.setattr(console, "_load", lambda **_: (SimpleNamespace(invert=lambda *_, **__: made), 0))
    assert called("invert", "a.npy") == "a b c\nd e\n"
    header = "row\tsample\tcosine\tlog_prob\ttext\n"
    assert called("invert", "a.npy", "--table") == f"{header}0\t0\t\t-12.346\ta b c\n1\t0\t\t-0.500\td e\n"
    made.rows, made.samples, made.cosines = [3, 3], [0, 1], [0.98765432, 1.0]
    lines = "3\t0\t0.9877\t-12.346\ta b c\n3\t1\t1.0000\t-0.500\td e\n"
    assert called("invert", "a.npy", "--table") == header + lines


@pytest.mark.parametrize("has_average", [True, False])
def test_every_option_of_the_import_and_export_arrives(
    has_average: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    found = tmp_path / "step-00000007"
    found.mkdir()
    if has_average:
        (found / "ema.safetensors").touch()

    def record(place: Any, name: str, result: Any) -> None:
        monkeypatch.setattr(place, name, lambda *given, **named: seen.__setitem__(name, (given, named)) or result)

    record(exporting, "export_checkpoint", found)
    for words, use_ema in ((("--last",), False), ((), True)):
        shown = called("export-checkpoint", "run", "out", "--checkpoint", "best", *words)
        assert seen["export_checkpoint"] == ((Path("run"), Path("out")), {"checkpoint": "best", "use_ema": use_ema})
        weights = "averaged" if use_ema and has_average else "last"
        assert shown == f"out/model.pt: the {weights} weights of {found}\n"
    called("export-checkpoint", "run", "out")
    assert seen["export_checkpoint"][1] == {"checkpoint": "latest", "use_ema": True}

    record(importing, "import_checkpoint", SimpleNamespace(format=None, tensors={}, left_out=[]))
    record(importing, "read_names", "names")
    called(
        "import-checkpoint", "a.pt", "run", "--tokenizer", "words", "--like", "other", "--names", "n.yml", "--heads", 3,
        "--max-length", 44, "--timesteps", "plain",
    )  # fmt: skip
    given = importing.Given(
        like=Path("other"), names="names", tokenizer="words", heads=3, max_length=44, timesteps="plain",  # type: ignore[arg-type]
    )  # fmt: skip
    assert seen["import_checkpoint"] == ((Path("a.pt"), Path("run"), given), {})
    assert seen["read_names"] == ((Path("n.yml"),), {})


def called(*words: Any) -> str:
    result = CliRunner().invoke(console.commands, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout
