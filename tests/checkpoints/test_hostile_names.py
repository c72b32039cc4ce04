"""A name or a value of a checkpoint is a bounded part of one line of its message, whatever the file contains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.converting import Names, rename
from mm_ldlm.extras.foreign_checkpoints.formats import summary
from mm_ldlm.training.checkpoints import folder, identity, reference

FILE = Path("model.pt")
HOSTILE = "\x1b[31m\n\u2028" + "x" * 5000 + "\r\ud800end"
ONE, TWO = torch.ones(1), torch.ones(2)


def mapped(found: dict[str, Any], targets: dict[str, Any], names: dict[str, Any]) -> Any:
    return rename(found, {name: torch.Size(shape) for name, shape in targets.items()}, Names(names), source=FILE)


def marker(place: Path, **changed: Any) -> Any:
    place.mkdir(exist_ok=True)
    whole = {"format_version": folder.FORMAT_VERSION, "step": 3, "files": {"a": {"bytes": 1, "sha256": "s"}}}
    (place / "COMPLETE").write_text(json.dumps({**whole, **changed}))
    return folder._marker(place)


def document(place: Path, value: Any) -> Any:
    (place / "a.json").write_text(json.dumps(value))
    return folder.document(place, "a.json")


def run_of(place: Path, config: Any) -> Any:
    (place / "config.json").write_text(json.dumps(config))
    return reference.config_of(str(place))


def beside(place: Path, name: str) -> str:
    return reference._hint("other", [place / name])


CASES: dict[str, tuple[Callable[[str, Path], Any], int]] = {
    "no text": (lambda name, _: legacy._checked({(name,): ONE}, FILE), 60),
    "no tensor": (lambda name, _: legacy._checked({name: 3}, FILE), 120),
    "a sparse tensor": (lambda name, _: legacy._checked({name: ONE.to_sparse()}, FILE), 120),
    "a repeated tensor": (lambda name, _: legacy._checked({name: ONE.expand(9)}, FILE), 120),
    "two prefixes": (lambda name, _: legacy._checked({f"module.{name}": ONE, name: ONE}, FILE), 120),
    "no such parameter": (lambda name, _: mapped({name: ONE}, {}, {}), 200),
    "a second tensor": (lambda name, _: mapped({"a": ONE, "b": ONE}, {name: (1,)}, {"a": name, "b": name}), 100),
    "another name for it": (lambda name, _: mapped({"a": ONE, name: ONE}, {"w": (1,)}, {"a": "w", name: "w"}), 100),
    "another shape": (lambda name, _: mapped({name: ONE}, {name: (2,)}, {}), 200),
    "another type": (lambda name, _: mapped({name: TWO.long()}, {name: (2,)}, {}), 200),
    "an entry for nothing": (lambda name, _: mapped({}, {}, {name: "w"}), 100),
    "a missing parameter": (lambda name, _: mapped({}, {name: (1,)}, {}), 100),
    "a list of names": (lambda name, _: summary([name]), 100),
    "a list of numbered names": (lambda name, _: summary([f"{name}.1.a", f"{name}.2.a"]), 100),
    "no identity": (lambda name, _: identity.refuse_other({}, name, FILE, remedy=""), 80),
    "the format": (lambda name, place: marker(place, format_version=name), 60),
    "the step": (lambda name, place: marker(place, step=name), 60),
    "the files": (lambda name, place: marker(place, files=[name]), 60),
    "no mapping": (lambda name, place: document(place, [name]), 60),
    "no such path": (
        lambda name, place: folder.find(place.with_name(name.encode("utf-8", "replace").decode() * 99)),
        200,
    ),
    "no model": (lambda name, place: run_of(place, {"model": name}), 80),
    "the nearest run": (lambda name, place: beside(Path(), name), 200),
}


def words(call: Callable[[str, Path], Any], name: str, place: Path) -> str:
    """What is returned, or the message of the error."""
    try:
        return str(call(name, place))
    except MMLDLMError as error:
        return str(error)


@pytest.mark.parametrize("case", CASES)
def test_a_name_of_any_letters_and_length_is_a_bounded_part_of_one_line(case: str, tmp_path: Path) -> None:
    call, most = CASES[case]
    plain, found = words(call, "qq", tmp_path), words(call, HOSTILE, tmp_path)
    assert len(plain) > 1
    assert found.isprintable()
    assert found.encode()
    assert len(found) <= len(plain) + most + 10


def test_a_file_of_another_trainer_that_is_not_readable_is_answered_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt").touch()

    def refused(found: Any) -> str:
        monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", found)
        with pytest.raises(MMLDLMError) as raised:
            legacy.read(tmp_path)
        return str(raised.value)

    def fails(file: Path) -> Any:
        raise RuntimeError("\x1b[31m" + "x" * 5000 + "\nand a trace")

    for text in (refused(fails), refused(lambda file: [HOSTILE])):
        assert text.isprintable()
        assert len(text) < len(str(tmp_path)) + 500
        assert "trace" not in text
