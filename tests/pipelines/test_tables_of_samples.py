"""What the nodes of `sampling` read and write: rows of the dataset, columns of the tables, and lines of the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.data import sentences
from mm_ldlm.pipelines.sampling import nodes as sampling_nodes

SAMPLERS = {"text": {"kind": "confidence"}, "latent": {"kind": "ddim"}}
SAMPLING: dict[str, Any] = {
    "rows": 3, "split": "validation", **SAMPLERS, "unconditional": {"count": 2, **SAMPLERS},
    "l2t": {"samples": 2, "keep": "all"},
}  # fmt: skip
HELD = SimpleNamespace(ids=("i0", "i1", "i2"), texts=("t0", "t1", "t2"), tokens=((1,), (2,), (3,)))
HELD.latents = np.array([[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
NUMBERS = ("length", "log_prob", "model_calls", "encoder_calls", "cosine")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the dataset, in order."""
    found: list[Any] = []

    def note(name: str, result: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            found.append((name, given[1:] if name in ("split_rows", "read_sentences", "images_of") else given, named))
            return result(*given) if callable(result) else result

        return noted

    monkeypatch.setattr(sentences, "split_rows", note("split_rows", lambda data, split: f"rows of {split}"))
    monkeypatch.setattr(sentences, "sample_rows", note("sample_rows", lambda rows, count: np.array([7, 5, 6])))
    monkeypatch.setattr(sentences, "read_sentences", note("read_sentences", lambda data, rows: HELD))
    monkeypatch.setattr(sentences, "images_of", note("images_of", lambda data, rows: "pixels"))
    monkeypatch.setattr(sentences, "latents_of", lambda data, rows: "latents of training")
    monkeypatch.setattr(sentences, "held_out", lambda data, **_: held())
    return found


def held() -> Any:
    class WithLength(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.ids)

    return WithLength(**vars(HELD))


def result(count: int, **more: Any) -> Any:
    numbers = {name: np.arange(count) + 10 * place for place, name in enumerate(NUMBERS)}
    frame = pd.DataFrame({"source": ["own"] * count, "text": [f"x{i}" for i in range(count)], **numbers})
    return SimpleNamespace(
        to_frame=frame.copy, tokens=[(i,) for i in range(count)], **{"rows": None, "latents": None, **more}
    )  # fmt: skip


def model(**methods: Any) -> Any:
    return SimpleNamespace(
        capabilities=SimpleNamespace(refuse_task=lambda *_, **__: None), parts=None, no_encoder=None, **methods
    )


def test_of_several_texts_each_row_names_the_sentence_that_it_was_written_for(asked: list[Any]) -> None:
    """Latent by latent: two texts of each of three sentences."""
    of_latents = np.repeat(np.arange(3), 2)
    made = result(6, rows=of_latents)
    frame = made.to_frame().assign(sample=[0, 1] * 3, best=[True, False] * 3)
    made.to_frame = frame.copy
    table = sampling_nodes.sample_l2t(model(invert=lambda given, **_: made), None, SAMPLING, 41)  # type: ignore[arg-type]
    assert list(table.columns) == list(sampling_nodes.L2T_COLUMNS)
    assert table["id"].tolist() == ["i0", "i0", "i1", "i1", "i2", "i2"]
    assert table["source"].tolist() == ["t0", "t0", "t1", "t1", "t2", "t2"]
    assert (table["sample"].tolist(), table["best"].tolist()) == ([0, 1] * 3, [True, False] * 3)
    assert table["tokens"].tolist() == [[i] for i in range(6)]
    for place, name in enumerate(NUMBERS):
        assert table[name].tolist() == [10 * place + i for i in range(6)], name


def test_the_cosine_of_a_vector_of_zeros_is_zero(asked: list[Any]) -> None:
    made = result(3, latents=np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    frame = pd.DataFrame({"source": ["s"] * 3, "latent": list(made.latents), "model_calls": [4, 5, 6]})
    made.to_frame = frame.copy
    table = sampling_nodes.sample_t2l(model(embed_tokens=lambda *_, **__: made), None, SAMPLING, 41)  # type: ignore[arg-type]
    assert table["cosine"].tolist() == [1.0, 0.0, 0.0]
    assert (table["model_calls"].tolist(), set(table["origin"])) == ([4, 5, 6], {"validation"})


def test_the_neighbours_of_generated_latents_are_looked_for_in_a_sample_of_the_training_sentences(
    asked: list[Any],
) -> None:
    taken: list[Any] = []
    text = SimpleNamespace(column=lambda name: SimpleNamespace(to_pylist=lambda: [f"{name} a", f"{name} b"]))
    data: Any = SimpleNamespace(records=SimpleNamespace(take=lambda rows: taken.append(rows.tolist()) or text))
    near = SimpleNamespace(rows=np.array([[2, 0], [0, 1]]), cosines=np.array([[0.75, 0.5], [0.25, 0.125]]))
    made = result(2, latents=np.eye(2))
    found: list[Any] = []
    table = sampling_nodes.sample_unconditional(
        model(generate=lambda *_, **__: made, neighbours=lambda *given, **how: found.append((given, how)) or near),
        data, SAMPLING, 41,
    )  # fmt: skip
    assert asked == [
        ("split_rows", ("train",), {}),
        ("sample_rows", ("rows of train", sampling_nodes.NEIGHBOUR_CANDIDATES), {"seed": 41}),
    ]
    assert found == [((made.latents, "latents of training"), {"k": 1})]
    assert taken == [[6, 7]], "rows of the store, not of the sample"
    assert table["neighbour"].tolist() == ["text a", "text b"]
    assert table["neighbour_cosine"].tolist() == [0.75, 0.25]
    assert [each.tolist() for each in table["latent"]] == [[1, 0], [0, 1]]


def test_images_and_captions_are_those_of_the_same_rows_of_the_split(asked: list[Any]) -> None:
    shown: list[Any] = []
    images = SimpleNamespace(
        draw_tokens=lambda *given, **_: result(3), caption=lambda pixels, **_: shown.append(pixels) or result(3),
        generate=lambda *_, **__: result(2),
    )  # fmt: skip
    sampling_nodes.sample_images(model(images=images), None, SAMPLING, 41)  # type: ignore[arg-type]
    names = [name for name, _, _ in asked]
    assert names == ["split_rows", "sample_rows", "read_sentences", "images_of"]
    assert asked[0][1] == ("validation",)
    assert asked[1][1:] == (("rows of validation", 3), {"seed": 41})
    assert [asked[place][1][0].tolist() for place in (2, 3)] == [[7, 5, 6]] * 2
    assert shown == ["pixels"]


def test_the_log_says_which_task_is_skipped_and_what_is_left_out_without_an_encoder(
    asked: list[Any], caplog: Any
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm")
    given: dict[str, Any] = {**SAMPLING, "infill": {"texts": ["a [MASK]"], "latents_of": ["b"]}}
    refusing = model()
    refusing.capabilities.refuse_task = lambda use, **_: f"it cannot {use}"
    sampling_nodes.edit_texts(refusing, given, 41)
    assert caplog.messages == ["task 'infill' is skipped: it cannot infill_given_latent"]
    with pytest.raises(SamplingError, match="it cannot infill_given_latent"):
        sampling_nodes.edit_texts(refusing, {**given, "tasks": ["infill"]}, 41)
    caplog.clear()
    for reads_images in (False, True):  # what a run without images could never do is no news
        refusing.capabilities.reads_images = reads_images
        sampling_nodes.sample_images(refusing, None, SAMPLING, 41)  # type: ignore[arg-type]
    images = ("caption_to_image", "image_to_caption", "image_text")
    assert caplog.messages == [f"task '{task}' is skipped: it cannot {task}" for task in images]
    caplog.clear()
    alone = model(invert=lambda *_, **__: result(3))
    alone.no_encoder = "the service is gone."
    sampling_nodes.sample_l2t(alone, None, SAMPLING, 41)  # type: ignore[arg-type]
    assert caplog.messages == ["task 'l2t' runs without search and re-embedding: the service is gone."]
    caplog.clear()
    sampling_nodes.sample_l2t(model(invert=lambda *_, **__: result(3)), None, SAMPLING, 41)  # type: ignore[arg-type]
    assert caplog.messages == []
