"""The explorer: its answers are those of the Python interface, and it refuses what is not meant for it."""

import dataclasses
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.inference.runs import DIM, DIT, TEXT, make, write_run

from mm_ldlm.app.console import commands
from mm_ldlm.extras.explorer.server import MOST_BYTES, Explorer, application
from mm_ldlm.inference.api import MMLDLM

LOOPBACK, IPV6 = "http://127.0.0.1", Path("/proc/net/if_inet6").exists()
SENTENCE, OTHER = "w1 w2 w3 w4", "w5 w6 w7"


@pytest.fixture(scope="module")
def model() -> MMLDLM:
    return make()


@pytest.fixture(scope="module")
def client(model: MMLDLM) -> Iterator[TestClient]:
    with TestClient(application({"one": model, "<b>two": make(DIT, TEXT)}), base_url=LOOPBACK) as made:
        yield made


def ask(client: TestClient, request: str, **asked: Any) -> Any:
    response = client.post(f"/ask/{request}", json={"texts": [SENTENCE], **asked})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_page_needs_nothing_from_elsewhere_escapes_names_and_says_what_a_run_cannot(client: TestClient) -> None:
    page = client.get("/").text
    assert "<b>two" not in page
    assert page.count("expected a run with its corpus") == 2
    assert "<script src=" not in page
    assert "https://" not in page
    assert "Plotly" in client.get("/plotly.js").text


@pytest.mark.parametrize(
    ("request_", "asked", "expected"),
    [
        ("invert", {"steps": 2}, lambda model: model.invert([SENTENCE], steps=2)),
        ("invert", {"search": True}, lambda model: model.invert([SENTENCE], search=True)),
        ("invert", {"sampler": "entropy", "temperature": 1.0, "seed": 3}, lambda model: model.invert([SENTENCE], sampler="entropy", temperature=1.0, seed=3)),
        ("interpolate", {"texts": [SENTENCE, OTHER], "toward": [OTHER, "w8"], "steps": 3}, lambda model: model.interpolate([SENTENCE, OTHER], [OTHER, "w8"], steps=3)),
        ("edit", {"toward": [OTHER], "strength": 0.0}, lambda model: model.edit([SENTENCE], targets=[OTHER], strength=0.0)),
        ("infill", {"texts": ["w1 [MASK] w3"]}, lambda model: model.infill(["w1 [MASK] w3"])),
        ("infill", {"gap": 2, "toward": [SENTENCE]}, lambda model: model.infill(["w1 w2 [MASK] w4"], latents=model.encode([SENTENCE]))),
    ],
)  # fmt: skip
def test_its_answers_are_those_of_the_python_interface(
    request_: str, asked: dict[str, Any], expected: Any, client: TestClient, model: MMLDLM
) -> None:
    found, texts = ask(client, request_, **asked), expected(model)
    assert [each["text"] for each in found["texts"]] == list(texts.texts)
    for each, tokens in zip(found["texts"], texts.tokens, strict=True):
        assert each["steps"][-1]["words"] == [model.tokenizer.written(token) for token in tokens]
    if texts.latents is not None:
        np.testing.assert_allclose(found["latents"], texts.latents, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        ("/ask/invert", {"texts": [SENTENCE]}, {"host": "evil.example"}, 400),
        ("/ask/invert", {"texts": [SENTENCE]}, {"content-type": "text/plain"}, 422),
        ("/ask/invert", {"texts": ["w1 " * MOST_BYTES]}, {}, 413),
        ("/ask/invert", {"texts": []}, {}, 400),
        ("/ask/invert", {"texts": [SENTENCE], "run": 2}, {}, 404),
        ("/ask/invert", {"texts": [SENTENCE], "run": 1}, {}, 400),
        ("/ask/invert", {"texts": [SENTENCE], "run": "https://user:S3cret@host"}, {}, 400),
        ("/ask/invert", {"texts": [SENTENCE], "sampler": "os:system"}, {}, 422),
        ("/ask/invert", {"texts": [SENTENCE], "store": "/"}, {}, 400),
        ("/ask/invert", {"texts": [SENTENCE], "steps": 10**6}, {}, 400),
        ("/ask/invert", {"texts": ["\ud800"]}, {}, 400),
        ("/ask/score", {"texts": [SENTENCE]}, {}, 422),
        ("/ask/neighbours", {"texts": [SENTENCE]}, {}, 400),
        ("/ask/neighbours", {"texts": [SENTENCE], "toward": [OTHER]}, {}, 422),
        ("/ask/invert", {"texts": [SENTENCE], "toward": [OTHER]}, {}, 422),
        ("/ask/interpolate", {"texts": [SENTENCE]}, {}, 422),
        ("/ask/edit", {"texts": [SENTENCE]}, {}, 422),
        ("/ask/invert", None, {}, 422),
        ("/ask/invert", float("nan"), {}, 422),
        ("/ask/invert", {"texts": [SENTENCE]}, {"content-length": "many"}, 413),
    ],
)  # fmt: skip
def test_other_requests_are_refused(
    path: str, body: Any, headers: dict[str, str], code: int, client: TestClient
) -> None:
    content = "" if body is None else json.dumps(body)
    response = client.post(path, content=content, headers={"content-type": "application/json", **headers})
    assert (response.status_code, "S3cret" in response.text) == (code, False), response.text
    if "host" not in headers:
        assert re.match("[a-z]", response.json()["detail"]), response.text  # a field, or what was expected


def test_a_run_without_its_encoder_fills_gaps_and_the_first_sampler_is_the_default(model: MMLDLM) -> None:
    (found,) = Explorer({"bare": make(encoder=None)}).runs
    assert [found["refused"][request] is None for request in ("invert", "infill")] == [False, True]
    assert found["samplers"][0] == model.model.default_sampler(conditional=True).kind


def test_the_command_serves_all_runs_on_their_device_under_every_name_of_its_address(
    model: MMLDLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, seen = [write_run(tmp_path / name) for name in "ab"], list[Any]()
    monkeypatch.setattr(MMLDLM, "from_run", lambda run, device: seen.append((run, device)) or model)

    def interrupted(app: Any) -> None:
        seen.append(app)
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Config", lambda app, **_: app)  # it would configure the logging of this process
    monkeypatch.setattr("uvicorn.Server", interrupted)
    words = [*(f"--run={run}" for run in runs), "--host=0.0.0.0", "--port=0", "--device=cuda:7", "--no-browser"]
    assert CliRunner().invoke(commands, ["explore", *words]).exit_code == 0
    assert seen[:-1] == [(run, "cuda:7") for run in runs]
    assert TestClient(seen[-1], base_url="http://any.name").get("/").status_code == 200


def test_a_text_that_looks_like_a_path_is_a_text(client: TestClient, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, DIM), dtype=np.float32))
    assert ask(client, "invert", texts=[str(tmp_path / "x.npy")])["unknown"]


@pytest.mark.parametrize("most", [6, 4000])
def test_neighbours_lie_on_the_map_of_the_corpus(
    most: int, write_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.explorer.server.MOST_POINTS", most)
    texts = [f"w{i} w{i + 1} w{i + 2}" for i in range(12)]
    run = make()
    dataset = write_dataset(tmp_path, texts, ["test"] * 4 + ["train"] * 8, latents=run.encode(texts))
    on_disk = MMLDLM(dataclasses.replace(run.parts, dataset=dataset.directory), run.encoder)
    client = TestClient(application({"none": run, "run": on_disk}), base_url=LOOPBACK)
    assert [text in client.get("/").text for text in texts] == [True] * 4 + [False] * 8, "examples of the test split"
    whole = client.get("/map/1").json()
    assert len({*whole["texts"]} & {*texts}) == len(whole["texts"]) == min(most, 12)
    found = ask(client, "neighbours", run=1, texts=[texts[3]], k=4)
    places = dict(zip(whole["texts"], whole["points"], strict=True))
    assert found["neighbours"][0][0] == texts[3]
    for (text, _), place in zip(found["neighbours"], found["places"], strict=True):
        np.testing.assert_allclose(place, places.get(text, place), atol=1e-3)
    np.testing.assert_allclose(found["place"], found["places"][0], atol=1e-3)


def test_a_server_refuses_its_address_before_it_loads_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, named in (
            ([str(tmp_path / "none")], "none"),
            ([str(run), "--port", str(taken.getsockname()[1])], "another --port"),
            ([str(run), "--host", ""], "0.0.0.0"),
            ([str(run), "--host", "nope.invalid"], "another --host"),
            ([str(run), "--host", "192.0.2.1"], "another --host"),
        ):
            for command in ("explore", "serve"):
                done = CliRunner().invoke(commands, [command, "--run", *words])
                assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
                assert named in done.output
