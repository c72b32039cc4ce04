"""Parts of an import by hand: which source of a setting counts, the mask of a tokenizer, weights of the objective."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_importing import HEADS, LENGTH, WORDS, D, older, weights
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints.converting import Names
from mm_ldlm.extras.foreign_checkpoints.exporting import refuse_existing
from mm_ldlm.extras.foreign_checkpoints.importing import Given, import_checkpoint
from mm_ldlm.extras.foreign_checkpoints.reading import Legacy

FILE = Path("model.pt")


class Root(nn.Module):
    """A model and an objective with a parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.objective = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize(
    ("given", "names", "loaded"),
    [
        ({"weight": 1.0, "objective.weight": 2.0}, None, (1.0, 2.0)), ({"weight": 1.0}, None, (1.0, 0.0)),
        ({"w": 1.0}, Names({"w": "weight"}, ("objective.weight",)), (1.0, 0.0)),
        ({"o": 3.0}, Names({"o": "objective.weight"}, ("weight",)), (0.0, 3.0)),
    ],
)  # fmt: skip
def test_the_objective_gets_its_weights_or_keeps_its_own(
    given: dict[str, float], names: Names | None, loaded: tuple[float, float]
) -> None:
    root = Root()
    shapes = {name: parameter.shape for name, parameter in (("w", root.model.weight), ("o", root.objective.weight))}
    tensors = {name: torch.full(shapes["o" if name.startswith("o") else "w"], value) for name, value in given.items()}
    config = {"shape": SimpleNamespace(num_ids=5), "model": {"kind": "dit", "dim": 4, "heads": 2}}
    found = importing._load(root, Legacy(FILE, tensors, None), config, names)
    assert (root.model.weight.unique().item(), root.objective.weight.unique().item()) == loaded
    assert found.format is None
    with pytest.raises(CheckpointError, match=r"Missing: \['model\.weight'\]|without a name in the checkpoint"):
        importing._load(root, Legacy(FILE, {}, None), config, names)


@pytest.mark.parametrize(
    ("values", "expected"), [((3, 4), 3), ((None, 4, 5), 4), ((None, None, 65_536), 65_536), ((1, "x"), 1)]
)
def test_the_first_setting_that_is_given_counts(values: tuple[Any, ...], expected: int) -> None:
    assert importing._count("--heads", *values, file=FILE) == expected


@pytest.mark.parametrize("value", [None, 0, -1, 65_537, True, 2.0, "2"])
def test_a_setting_that_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"expected --heads from 1 to 65,536, found .* Give --heads N"):
        importing._count("--heads", value, file=FILE)


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        ("plain", {"time_conditioning": False}, "plain"), (None, {"time_conditioning": False}, "none"),
        (None, {"time_conditioning": False, "model": {"diffusion_process": "mdlm"}}, "none"),
        (None, {"model": {"diffusion_process": "mdlm"}}, "plain"), ("none", {"time_conditioning": True}, "none"),
        (None, {"time_conditioning": True}, "embeds σ"), (None, {}, "expected --timesteps"),
        (None, {"model": "x"}, "expected --timesteps"),
    ],
)  # fmt: skip
def test_how_the_timestep_reached_the_model(given: Any, settings: dict[str, Any], expected: str) -> None:
    if expected in ("none", "plain"):
        assert importing._timesteps(FILE, given, settings) == expected
    else:
        with pytest.raises(CheckpointError, match=expected):
            importing._timesteps(FILE, given, settings)


@pytest.mark.parametrize(("heads", "words"), [(HEADS * 2, "expected heads of dimension 4"), (HEADS, "")])
def test_the_heads_of_the_command_are_compared_with_the_file(heads: int, words: str, tmp_path: Path) -> None:
    path = older(tmp_path / "older")
    if words:
        with pytest.raises(CheckpointError, match=words):
            import_checkpoint(path, tmp_path / "run", Given(heads=heads))
        assert not (tmp_path / "run").exists()
    else:
        import_checkpoint(path, tmp_path / "run", Given(heads=heads))


def saved(place: Path, *specials: str) -> Path:
    base = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)} | {"[UNK]": WORDS}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.add_special_tokens(list(specials))
    place.mkdir(parents=True)
    base.save(str(place / "tokenizer.json"))
    return place


@pytest.mark.parametrize(
    ("specials", "more_rows", "mask", "size"),
    [
        ((), 1, 21, 23), (("[PAD]",), 1, 22, 23),  # MDLM's [MASK] is behind the tokens of its tokenizer
        (("<mask>",), 1, 21, 23), (("[PAD]", "[MASK]"), 1, 22, 23), (("[PAD]",), 0, 22, 23), (("[PAD]",), 2, 22, 23),
    ],
)  # fmt: skip
def test_the_mask_is_that_of_the_tokenizer_or_the_id_behind_it(
    specials: tuple[str, ...], more_rows: int, mask: int, size: int, tmp_path: Path
) -> None:
    place = saved(tmp_path / "a", *specials)
    rows = WORDS + 1 + len(specials) + more_rows
    for named in (None, str(place), str(place / "tokenizer.json")):
        found = importing._tokenizer(place if named is None else tmp_path, named, rows=rows, max_length=7)
        assert (found.mask_id, found.vocab_size, found.max_length) == (mask, size, 7)


def test_a_tokenizer_is_taken_from_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, other = saved(tmp_path / "a", "[PAD]", "[MASK]"), saved(tmp_path / "b", "[PAD]", "[MASK]", "more")
    given: dict[str, Any] = {"rows": 5, "max_length": 7}
    assert importing._tokenizer(beside, None, **given).vocab_size == 23
    assert importing._tokenizer(beside, str(other), **given).vocab_size == 24, "the command comes first"
    asked: list[Any] = []
    base = Tokenizer.from_file(str(other / "tokenizer.json"))
    monkeypatch.setattr(importing.pretrained, "from_package", lambda: asked.append("package") or base)
    monkeypatch.setattr(
        importing.pretrained, "from_hub", lambda name, *, revision: asked.append((name, revision)) or base
    )
    for name in ("bert-base-uncased", "someone/else"):
        importing._tokenizer(beside, name, **given)
    assert asked == ["package", ("someone/else", None)]
    with pytest.raises(CheckpointError, match=r"expected tokenizer\.json or vocab\.txt beside the weights, found none"):
        importing._tokenizer(tmp_path, None, **given)


def test_a_file_and_a_folder_with_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(CheckpointError, match="expected a new folder, found one with files"):
            refuse_existing(tmp_path / name)
    for name in ("empty", "new"):
        refuse_existing(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"cannot be a folder \(File name too long\)"):
        refuse_existing(tmp_path / ("x" * 300))


def described(place: Path, tensors: dict[str, Any], given: Given, settings: str = "") -> dict[str, Any]:
    """The configuration of a run for these weights beside a tokenizer of 23 tokens."""
    saved(place, "[PAD]", "[MASK]")
    (place / "config.yaml").write_text("model: {diffusion_process: mdlm" + settings + "}\n")
    (place / "made").mkdir()
    return importing._ddit(Legacy(place / "model.pt", tensors, None), given, place / "made")


def test_depth_width_and_heads_are_those_of_the_weights(tmp_path: Path) -> None:
    tensors = weights(64, depth=3)
    for n in range(3):
        tensors |= {f"blocks.{n}.mlp.0.weight": torch.zeros(3 * D, D), f"blocks.{n}.mlp.0.bias": torch.zeros(3 * D),
                    f"blocks.{n}.mlp.2.weight": torch.zeros(D, 3 * D)}  # fmt: skip
    found = described(tmp_path / "a", tensors, Given())
    model, shape = found["model"], found["shape"]
    assert (model["dim"], model["depth"], model["heads"], model["mlp_ratio"]) == (D, 3, HEADS, 3.0)
    assert (model["conditioning_dim"], model["kind"]) == (8, "dit")
    assert (shape.vocab_size, shape.pad_id, shape.mask_id, shape.max_length) == (23, 21, 22, LENGTH)
    assert (found["objective"]["kind"], found["objective"]["length_weight"]) == ("text_diffusion", 0.0)


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        (Given(heads=HEADS, max_length=5), ", n_heads: 4, max_seq_len: 7, length: 9", (HEADS, 5)),
        (Given(), ", n_heads: 4, max_seq_len: 7, length: 9", (4, 7)), (Given(), ", n_heads: 1, length: 9", (1, 9)),
    ],
)  # fmt: skip
def test_what_the_weights_do_not_show_is_read_from_the_command_and_then_from_the_settings(
    given: Given, settings: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    tensors = {name: value for name, value in weights(64).items() if not name.startswith("rotary_emb")}
    found = described(tmp_path / "a", tensors, given, settings)
    assert (found["model"]["heads"], found["shape"].max_length) == expected


def test_a_list_of_words_is_read_in_lower_case_and_after_a_whole_tokenizer(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rows": 5, "max_length": 7}
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("[PAD]\n[UNK]\n[MASK]\n[CLS]\n[SEP]\nhello\nworld\n")
    for named in (None, str(tmp_path / "words" / "vocab.txt")):
        found = importing._tokenizer(tmp_path / "words", named, **given)
        assert found.encode(["Hello WORLD"])[0] == [5, 6]
    both = saved(tmp_path / "both", "[PAD]", "[MASK]")
    (both / "vocab.txt").write_text((tmp_path / "words" / "vocab.txt").read_text())
    assert importing._tokenizer(both, None, **given).vocab_size == 23
