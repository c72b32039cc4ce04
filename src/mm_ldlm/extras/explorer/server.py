"""The server of the explorer: its page, and the answers of a run's requests with their traces.

It listens where the caller says, answers only requests that name this address or the loopback one, and reads no path
from a request.
"""

import inspect
import threading
import time
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Literal, get_args

import click
import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from plotly.offline import get_plotlyjs
from sklearn.decomposition import PCA
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mm_ldlm.core import MMLDLMError, bounded, config, mask, parse
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.held_out import held_out, sample_rows
from mm_ldlm.evaluation.report.page import rendered
from mm_ldlm.evaluation.report.traces import played
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.requests.neighbours import corpus_of
from mm_ldlm.sampling.registry import TEXT_SAMPLERS

Name = Literal["invert", "interpolate", "edit", "infill", "neighbours"]
"""Requests that the page makes"""
USES: dict[Name, str] = {"invert": "l2t", "interpolate": "interpolate", "edit": "edit", "infill": "infill"}
"""Request → what the run must be able to do"""
TOWARD = {"interpolate": "b", "edit": "targets", "infill": "latents"}
"""Request → its argument that is the embedding of a second sentence"""
MOST_TEXTS, MOST_CHARACTERS, MOST_BYTES, MOST_POINTS = 4, 2_000, 100_000, 4_000
"""Limits of one request, and of the map"""

Text = Annotated[str, bounded(min_length=1, max_length=MOST_CHARACTERS)]


@config
class Asked:
    """A request of the page."""

    run: Annotated[int, bounded(ge=0)] = 0
    texts: Annotated[tuple[Text, ...], bounded(min_length=1, max_length=MOST_TEXTS)]
    toward: Annotated[tuple[Text, ...], bounded(max_length=MOST_TEXTS)] = ()
    gap: Annotated[int, bounded(ge=0)] | None = None
    """Number of the token of the first text that becomes a gap"""
    sampler: str | None = None
    steps: Annotated[int, bounded(ge=1, le=64)] | None = None
    temperature: Annotated[float, bounded(ge=0, le=10)] | None = None
    strength: Annotated[float, bounded(ge=0, le=1)] | None = None
    k: Annotated[int, bounded(ge=1, le=50)] | None = None
    seed: Annotated[int, bounded(ge=0, lt=2**31)] = 0
    search: bool = False
    reembed: bool = True


class CorpusMap:
    """The latents of a dataset in two dimensions: their first principal components.

    Attributes:
        texts: texts of the points, at most `MOST_POINTS`.
        points_n2: their places.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        every = np.concatenate([dataset.rows(split) for split in SPLITS])
        rows = sample_rows(every, MOST_POINTS, seed=0)
        latents_nd = dataset.require("latents").take(rows)
        self.texts = dataset.records.table(rows).column("text").to_pylist()
        self.components = PCA(n_components=2, random_state=0).fit(latents_nd)
        self.points_n2 = self.place(latents_nd)

    def place(self, latents_nd: Any) -> list[list[float]]:
        """Return the places (n, 2) of raw latents."""
        return self.components.transform(latents_nd).round(4).tolist()


class Explorer:
    """Runs by name, and their answers.

    Attributes:
        runs: what the page shows of each run.
    """

    def __init__(self, models: Mapping[str, MMLDLM]) -> None:
        self.models = [model.traced() for model in models.values()]
        self.map = cache(lambda run: CorpusMap(corpus_of(self.models[run])))
        self.runs = [self.about(name, model) for name, model in zip(models, self.models, strict=True)]

    def about(self, name: str, model: MMLDLM) -> dict[str, Any]:
        """Describe a run for the page, and load its encoder."""
        absent = model.no_encoder and f"The page embeds sentences by the encoder of the run, but {model.no_encoder}"
        needed = {request: None if request == "infill" else absent for request in USES}
        refused = {request: model.capabilities.refusal(use) or needed[request] for request, use in USES.items()}
        refused["neighbours"] = absent
        if "l2t" in model.capabilities and not absent:
            model.encode(["a"])
        try:
            texts = held_out(corpus_of(model), count=8, seed=0, split="test").texts
        except MMLDLMError as error:  # an exported run, or the dataset was removed
            texts, refused["neighbours"] = (), str(error)
        searches = "search" in model.capabilities
        return {"name": name, "refused": refused, "samplers": samplers(model), "searches": searches, "examples": texts}

    def answer(self, request: Name, asked: Asked) -> dict[str, Any]:
        """Answer a request by its run; `MMLDLMError` explains why it cannot."""
        started, model = time.perf_counter(), self.models[asked.run]
        method, texts = getattr(model, request), [*asked.texts]
        known = {*inspect.signature(method).parameters} - {"texts"}
        arguments = {name: value for name, value in vars(asked).items() if name in known and value is not None}
        if asked.gap is not None:
            for start, stop in model.tokenizer.spans(texts[0])[asked.gap : asked.gap + 1]:
                texts = [f"{texts[0][:start]}[MASK]{texts[0][stop:]}"]
        if asked.toward:
            arguments[TOWARD[request]] = model.encode([*asked.toward])
        found = method(texts, **arguments)
        if request == "neighbours":
            corpus = self.map(asked.run)
            lines = zip(found.texts[0], found.cosines[0].tolist(), strict=True)
            places = corpus.place(corpus.dataset.require("latents").take(found.rows[0]))
            shown = {"neighbours": [*lines], "places": places, "place": corpus.place(model.encode(texts))[0]}
        else:
            latents = [] if found.latents is None else np.asarray(found.latents, dtype=float).round(3).tolist()
            shown = {"texts": played(found), "latents": latents, "unknown": bool(np.any(found.unknown))}
        return {**shown, "seconds": time.perf_counter() - started}


def samplers(model: MMLDLM) -> list[str]:
    """List the kinds of text samplers that fit a model; the first is its default."""
    found = [model.model.default_sampler(conditional=True).kind]
    for kind in TEXT_SAMPLERS:
        with suppress(MMLDLMError):
            sampler = model.text_sampler(kind, None)
            if model.capabilities.sampler_refusal(sampler, "infill", given_latent=False) is None:
                found.append(kind)
    return list(dict.fromkeys(found))


def application(models: Mapping[str, MMLDLM], *, hosts: Sequence[str] = ()) -> FastAPI:
    """Make the application of the explorer for runs by name; `hosts` are further names by which it may be called."""
    explorer = Explorer(models)
    page = rendered(
        "mm_ldlm.extras.explorer/explorer.html.j2", figures={}, title="MM-LDLM", kind="explorer", runs=explorer.runs
    )
    app = FastAPI(title="MM-LDLM explorer", docs_url=None, redoc_url=None)  # pages that load scripts from elsewhere
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", *hosts])

    @app.middleware("http")
    async def refuse_long(request: Request, proceed: Any) -> Response:
        size = request.headers.get("content-length", "0" if request.method == "GET" else "")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            expected = f"expected the header Content-Length with a number of bytes up to {MOST_BYTES:,}"
            return JSONResponse({"detail": f"{expected}, found {size or 'none'}. Send a shorter request."}, 413)
        made: Response = await proceed(request)
        return made

    @app.exception_handler(MMLDLMError)
    def refuse(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": mask(str(error))}, 400)

    @app.exception_handler(RequestValidationError)
    def refuse_values(request: Request, error: RequestValidationError) -> JSONResponse:
        expected = f"a request of {', '.join(get_args(Name))} with a JSON object, sent as application/json"
        return JSONResponse({"detail": f"expected {expected}, found something else. Correct it."}, 422)

    @app.get("/")
    def show() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/plotly.js")
    def plotly() -> Response:
        return Response(get_plotlyjs(), media_type="text/javascript")

    @app.get("/map/{run}")
    def corpus_map(run: int) -> dict[str, Any]:
        corpus = explorer.map(known(run))
        return {"texts": corpus.texts, "points": corpus.points_n2}

    @app.post("/ask/{request}")
    def ask(request: Name, body: dict[str, Any]) -> dict[str, Any]:
        asked = parse(Asked, body, at="")
        if asked.sampler not in (None, *explorer.runs[known(asked.run)]["samplers"]):
            raise HTTPException(422, f"expected one of the samplers of this run, found {asked.sampler!r}")
        if asked.toward and request not in TOWARD:
            raise HTTPException(422, f"{request}: expected no field 'toward', found one. Leave it out.")
        if not asked.toward and request in ("interpolate", "edit"):
            raise HTTPException(422, f"{request}: expected the field 'toward' with a second text, found none. Add it.")
        return explorer.answer(request, asked)

    def known(run: int) -> int:
        if not 0 <= run < len(explorer.models):
            raise HTTPException(404, f"expected a run from 0 to {len(explorer.models) - 1}, found {run}")
        return run

    return app


def serve(runs: Sequence[Path], listener: socket, *, device: str | None, browser: bool) -> None:
    """Load the runs, and serve their page until the process is interrupted."""
    models = {str(run): MMLDLM.from_run(run, device=device) for run in runs}
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}"
    app = application(models, hosts=["*"] if host in ("0.0.0.0", "::") else [name])
    click.echo(f"Explorer of {', '.join(models)}: {address} (Ctrl+C ends it)", err=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
