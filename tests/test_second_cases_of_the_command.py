"""Rarer texts of `--params`, layers, options and messages, each to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from mm_ldlm.core.overrides import EXAMPLE, nested, parse_params
from mm_ldlm.extras.http_encoder.keys import read_key

from mm_ldlm import cli
from mm_ldlm.app import console
from mm_ldlm.app.config_loader import LayeredConfigLoader, parse_environment
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.core.messages import duration, show
from mm_ldlm.settings import CONFIG_LOADER_ARGS

# -- the text of --params ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a=[1,{b: 2", 6, "expected } for the {, found the end of the text. Close every bracket"),
        ("a=[{},[1", 7, "expected ] for the [, found the end of the text. Close every bracket"),
        ("a,b=1", 1, "expected KEY=VALUE, found 'a' without '='. Write a list in brackets, and quote a text that "
         "contains a comma"),
        ("s=1, a b , c=2", 6, "expected KEY=VALUE, found 'a b' without '='. Write a list in brackets, and quote a text "
         "that contains a comma"),
        *((f"a{mark}b=1", 1, f"expected a key such as section.name before '=', found {f'a{mark}b'!r}. Correct it")
          for mark in "[]{}'\""),
        (".a=1", 1, "expected a key such as section.name before '=', found '.a'. Correct it"),
        ("x=1, a. .b=1", 6, "expected a key such as section.name before '=', found 'a. .b'. Correct it"),
        ("a=\"b", 3, "expected \" at the end of the quoted text, found the end of the option. Close the quote"),
        ("a='b' c", 7, "expected a comma or the end after ', found 'c'. Separate items by commas, and quote a text "
         "that begins with a bracket or a quote"),
        ('a="b""c"', 6, "expected a comma or the end after \", found '\"c\"'. Separate items by commas, and quote a "
         "text that begins with a bracket or a quote"),
        ("a=" + "[" * 33, 35, "expected at most 32 nested brackets, found more. Remove some"),
    ],
)  # fmt: skip
def test_a_fault_of_the_text_is_refused_to_the_letter(text: str, place: int, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_params(text)
    assert str(error.value) == f"--params, character {place}: {words}. Example: {EXAMPLE}."
    with pytest.raises(ConfigurationError) as error:
        parse_params(text, option="run.yml")
    assert str(error.value).startswith(f"run.yml, character {place}: ")


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("a.b=1,a={'c.d': 2}", {"a": {"b": 1, "c.d": 2}}),
        ("a={b: {x: 1}},a={'b': {y: 2}, 'b.x': 3}", {"a": {"b": {"x": 1, "y": 2}, "b.x": 3}}),
        ("a={b: 1},a=3", {"a": 3}),
        ("a={b: 1},a=[c]", {"a": ["c"]}),
        ("a=[x: 'y, ]']", {"a": [{"x": "y, ]"}]}),
        ("a={b: 'c}'}, d='e,''f'", {"a": {"b": "c}"}, "d": "e,'f"}),
        ('a="b\\"c,d",e=1', {"a": 'b"c,d', "e": 1}),
        ("a='b\\',c=1", {"a": "b\\", "c": 1}),
        ("a = 1 , b.c = x y ", {"a": 1, "b": {"c": "x y"}}),
        ("a=" + "[" * 32 + "]" * 32, {"a": json.loads("[" * 32 + "]" * 32)}),
        (",,a=1,,", {"a": 1}),
    ],
)
def test_a_rarer_text_is_read(text: str, parameters: dict[str, Any]) -> None:
    assert parse_params(text) == parameters


def test_a_mapping_below_a_dotted_key_is_merged_and_not_changed() -> None:
    inner = {"x": 1}
    given = {"a.b": inner, "a": {"b": {"y": 2}}, "c": 3}
    assert nested(given) == {"a": {"b": {"x": 1, "y": 2}}, "c": 3}


# -- layers ------------------------------------------------------------------------------------------------------------


def conf(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"base/parameters.yml": "a: 1\n", "base/catalog.yml": "x: {type: MemoryDataset}\n",
                       **files}.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def loader(root: Path, env: str | None, **runtime: Any) -> LayeredConfigLoader:
    return LayeredConfigLoader(root, env=env, runtime_params=runtime or None, **CONFIG_LOADER_ARGS)


def test_parameters_of_the_run_are_no_entries_of_the_catalog(tmp_path: Path) -> None:
    found = loader(conf(tmp_path, {"own/globals.yml": "g: 1\n"}), "own", data="/disk", a=7)
    assert found["parameters"] == {"a": 7, "data": "/disk"}
    assert found["catalog"] == {"x": {"type": "MemoryDataset"}}
    assert found["globals"] == {"g": 1}


def test_a_layer_of_json_is_read(tmp_path: Path) -> None:
    root = conf(
        tmp_path, {"own/parameters/mine.json": '{"a": 5}', "own/catalog_more.yaml": "y: {type: MemoryDataset}\n"}
    )
    found = loader(root, "own")
    assert found["parameters"] == {"a": 5}
    assert set(found["catalog"]) == {"x", "y"}


@pytest.mark.parametrize(
    ("file", "hint"),
    [("paramters/a.yml", " Did you mean 'parameters.yml'?"), ("globasl.yml", " Did you mean 'globals.yml'?"),
     ("zzz/qqq.yml", ""), ("zzz/sub/notes.txt", "")],
)  # fmt: skip
def test_the_folder_of_a_file_that_nothing_reads_suggests_its_name(file: str, hint: str, tmp_path: Path) -> None:
    found = loader(conf(tmp_path, {f"own/{file}": "b: 1\n"}), "own")
    with pytest.raises(ConfigurationError) as error:
        found["parameters"]
    assert str(error.value) == (
        f"environment 'own': no command reads its file '{file}'.{hint} Expected globals.yml, or YAML or JSON whose "
        "name or folder begins with parameters, catalog or credentials. Rename it, or remove it."
    )


@pytest.mark.parametrize("other", ["notes.md", ".hidden.yml", "a.yml~", "a.orig"])
def test_a_file_that_is_not_read_is_not_blamed_for_the_fault_of_another(other: str, tmp_path: Path) -> None:
    """The first file of the layer that was no mapping was named, although Kedro does not read it."""
    root = conf(tmp_path, {f"own/parameters/{other}": "- a list\n", "own/parameters/z.yml": "a: [\n"})
    with pytest.raises(ConfigurationError, match=r"own/parameters/z\.yml, line 2: cannot be read as YAML: "):
        loader(root, "own")["parameters"]


def test_the_default_environment_is_named_where_none_was_chosen(tmp_path: Path) -> None:
    found = loader(conf(tmp_path, {"local/parameters.yml": "b: '${nope}'\n"}), None)
    with pytest.raises(ConfigurationError) as error:
        found["parameters"]
    assert str(error.value).startswith(
        f"the configuration 'parameters' of the environment 'local' in {tmp_path} cannot be read: "
    )
    assert str(error.value).endswith(". Correct the file that it names.")
    assert isinstance(error.value, click.ClickException)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("x", "environment 'x' is not known. Environments in S: base, b, a. Combine several with '+'."),
        ("a+x", "environment 'x' is not known (in --env=a+x). Environments in S: base, b, a. Combine several with "
         "'+'."),
        ("a++b", "environment 'a++b': expected a name on each side of '+', found an empty layer at position 2. Remove "
         "the extra '+', or name a layer: b, a."),
        ("a+base", "environment 'a+base': 'base' is always the lowest layer. Leave it out of a combination."),
        ("a+b+a", "environment 'a+b+a': expected each layer once, found 'a' repeated. Keep it at one position; a later "
         "layer overrides an earlier one."),
        ("a+a", "environment 'a+a': expected each layer once, found 'a' repeated. Keep it at one position; a later "
         "layer overrides an earlier one."),
    ],
)  # fmt: skip
def test_an_environment_is_refused_to_the_letter(environment: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_environment(environment, base="base", known=iter(["b", "a"]), source="S")
    assert str(error.value) == words
    assert parse_environment("b+a", base="base", known=iter(["b", "a"]), source="S") == ("b", "a")
    assert parse_environment("base", base="base", known=[], source="S") == ()


def test_a_configuration_that_is_not_there_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        loader(tmp_path / "none", "own")
    assert str(error.value).startswith("expected the folder of the configuration at ")
    assert str(error.value).endswith(
        "none, found none. Run the command in the folder of the project, or name the folder with --conf-source."
    ) or f"{tmp_path / 'none'}/, found none" in str(error.value)


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_file_of_options_keeps_the_defaults_that_it_does_not_set(tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text("run: {env: own, tags: [a, b], params: {a.b: 1}}\n")
    context = click.Context(click.Command("run"), info_name="run")
    context.default_map = {"runner": "R", "env": "lower"}
    assert cli.read_config(context, click.Option(["--config"]), str(file)) == str(file)
    assert context.default_map == {"runner": "R", "env": "own", "tags": "a,b", "params": {"a": {"b": 1}}}
    assert cli.read_params(context, click.Option(["--params"]), "a.c=2") == {"a": {"b": 1, "c": 2}}
    assert cli.read_params(context, click.Option(["--params"]), None) == {"a": {"b": 1}}
    context.default_map = None
    assert cli.read_params(context, click.Option(["--params"]), "") == {}
    assert cli.read_config(context, click.Option(["--config"]), None) is None
    assert context.default_map is None


def test_a_message_of_a_command_has_no_password() -> None:
    with pytest.raises(click.ClickException) as error, console.messages_only():
        raise StoreError("no answer from http://me:sentinel@host")
    assert error.value.message == "no answer from http://***@host"
    with pytest.raises(ZeroDivisionError), console.messages_only():
        raise ZeroDivisionError


def test_latents_that_cannot_be_written_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", "a temporary name")

    model = SimpleNamespace(embed=lambda texts, **_: SimpleNamespace(latents=[[1.0]]))
    monkeypatch.setattr(console, "_load", lambda **_: (model, 0))
    monkeypatch.setattr(console.atomic, "write_bytes", refuse)
    (tmp_path / "t.txt").write_text("a\n")
    result = CliRunner().invoke(console.commands, ["embed", str(tmp_path / "t.txt"), "o.npy"])
    assert result.output == "Error: o.npy cannot be written (Permission denied). Choose another file.\n"
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [("invert", ("--samples", "--keep", "--temperature", "--steps", "--cosine", "--table", "row, sample, cosine, "
                 "log_prob, text", "[default: 1]", "[default: best]")),
     ("embed", ("--draws", "--steps", "[default: 4]")),
     ("import-checkpoint", ("--tokenizer", "--like", "--names", "--heads", "--max-length", "--timesteps",
                            "none|plain")),
     ("export-checkpoint", ("--checkpoint", "--last", "[default: latest]"))],
)  # fmt: skip
def test_the_help_of_a_command_has_its_options_and_their_defaults(option: str, words: tuple[str, ...]) -> None:
    text = " ".join(CliRunner().invoke(console.commands, [option, "--help"]).output.split())
    assert [word for word in words if word not in text] == []
    if option in ("invert", "embed"):
        assert "--run TEXT A run, a checkpoint, or a folder of runs (the newest one). [default: data/06_models/" in text
        assert text.index("--run") < text.index("--checkpoint") < text.index("--device") < text.index("--seed")


# -- messages ----------------------------------------------------------------------------------------------------------


def test_seconds_are_rounded_to_the_nearest_one() -> None:
    seconds = (89.9, 90.7, 150.5001, 5399.4, 5399.6, 7259.0, 7260.0)
    assert [duration(value) for value in seconds] == [
        "90 s", "1 min 31 s", "2 min 31 s", "89 min 59 s", "1 h 30 min", "2 h 00 min", "2 h 01 min"
    ]  # fmt: skip


@pytest.mark.parametrize("made", [list, tuple, set, lambda values: dict.fromkeys(values, 1)])
def test_twelve_items_of_any_collection_are_shown(made: Any) -> None:
    twelve, more = (show(made(range(1000, 1000 + count))) for count in (12, 13))
    assert "..." not in twelve
    assert "1011" in twelve
    assert "..." in more
    assert "1012" not in more


def test_nested_values_are_shown_to_four_levels_and_long_ones_to_their_limits() -> None:
    assert show([[[["a"]]]]) == "[[[['a']]]]"
    assert show([[[[["a"]]]]]) == "[[[[[...]]]]]"
    assert show(10**59) == str(10**59)
    assert show(10**60) != str(10**60)
    assert show("x" * 198) == repr("x" * 198)
    assert len(show("x" * 199)) == 200


@pytest.mark.parametrize("value", ["a b", "a\tb", "caf\xe9", "a\x7f"])
def test_a_key_with_other_characters_is_counted_and_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigurationError) as error:
        read_key("SOME_KEY", parameter="x.y")
    assert str(error.value) == (
        "parameter 'x.y': expected a key of printable ASCII characters without spaces in the environment variable "
        f"SOME_KEY, found others in its {len(value)} characters. Set the variable to the key alone."
    )


def test_an_import_that_fails_is_named_by_its_own_words() -> None:
    kinds = Kinds("apple", {"red": "mm_ldlm.core.messages:Nothing"}, group="none", interface=object)
    with pytest.raises(ConfigurationError) as error:
        kinds.find("red", at="it")
    assert str(error.value) == (
        "parameter 'it.kind': mm_ldlm.core.messages:Nothing cannot be imported (module 'mm_ldlm.core.messages' has no attribute "
        "'Nothing'). Correct the path, or install or correct its package."
    )
    with pytest.raises(ConfigurationError) as error:
        kinds.find("green", at="it")
    assert str(error.value) == (
        "parameter 'it.kind': expected an apple, found 'green'. Known here: red; or give the import path of a "
        "configuration, package.module:Class."
    )
