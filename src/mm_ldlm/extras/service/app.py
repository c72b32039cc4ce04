"""The endpoints of the service, its errors and its metrics."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse

from mm_ldlm.core import ConfigurationError, EncoderError, MMLDLMError, bounded, config, mask, parse
from mm_ldlm.extras.service.batches import MOST_JOBS, Batches
from mm_ldlm.extras.service.requests import READS, TEXT, WRITES, Endpoint, Limits, endpoints, rows_of
from mm_ldlm.inference.api import MMLDLM

ABOUT = (
    "Requests and answers are JSON objects; the `rows` of an answer are its table. A single text may be sent "
    "instead of a list. No field is a path: where the help names a file or a folder, send texts or vectors."
)
OPENAI, OPERATION = "In the convention of OpenAI", "Operation"
TAGS = [
    {"name": WRITES, "description": "from embeddings, from noise, or from other texts"},
    {"name": READS, "description": "embeddings, neighbours and likelihoods"},
    {"name": OPENAI, "description": "for its clients"},
    {"name": OPERATION, "description": "whether the service is alive and ready, and its metrics"},
]
SEE = "The page /docs explains the fields of each request."


def build(model: MMLDLM, limits: Limits, *, key: str | None = None) -> FastAPI:
    """Make the service of a model; with a key, requests need it."""
    registry, requests = CollectorRegistry(), endpoints(limits, model)
    ProcessCollector(registry=registry)
    sizes = Histogram(
        "requests_per_computation", "Requests that were computed together", registry=registry,
        buckets=[1, 2, 4, 8, 16, MOST_JOBS],
    )  # fmt: skip
    batches = Batches(model, window=limits.window / 1000, observe=sizes.observe)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        computing = asyncio.create_task(batches.run())
        first = batches.answer(requests["encode"].job({"texts": "ready"}))  # loads the encoder, if the run has one
        app.state.loading = asyncio.gather(first, return_exceptions=True)
        yield  # until the last request is answered
        computing.cancel()

    def authorised(
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))],
    ) -> None:
        if key is None or given is None or not secrets.compare_digest(given.credentials.encode(), key.encode()):
            raise HTTPException(
                401, "expected the header 'Authorization: Bearer KEY' with the key of this service. Send it.",
                {"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    locked = [] if key is None else [Depends(authorised)]
    app = FastAPIOffline(
        title="MM-LDLM", version=version("mm-ldlm"), description=f"{model!r}\n\n{ABOUT}", openapi_tags=TAGS,
        redoc_url=None, redirect_slashes=False, lifespan=lifespan,
        exception_handlers={
            MMLDLMError: explain, HTTPException: explain,
            ClientDisconnect: lambda *_: Response(status_code=400),  # the client is gone
        },
    )  # fmt: skip
    schemas: dict[str, Any] = {}

    @config
    class Embeddings:
        input: Annotated[
            rows_of(limits, texts=True, vectors=False),  # type: ignore[valid-type]
            bounded(description="Texts, each of which has an embedding."),
        ]
        model: Annotated[
            Literal["encoder", "model"], bounded(description="The run's encoder, or its own model, as /embed.")
        ] = "encoder"
        encoding_format: Annotated[
            Literal["float", "base64"], bounded(description="Numbers, or the bytes of float32 numbers in base64.")
        ] = "float"
        user: Annotated[str | None, bounded(description="Not used.")] = None

    def add(path: str, body: type, respond: Callable[[Any], Awaitable[Any]], **about: Any) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                found = await respond(await body_of(request, limits.max_bytes))
            except asyncio.CancelledError:  # by the server, whose time to stop is over
                raise HTTPException(503, "expected a running service, found one that stops. Ask again soon.") from None
            content = to_json(found, inf_nan_mode="null", fallback=lambda array: array.tolist())
            return Response(content, media_type="application/json")

        schema = TypeAdapter(body).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        content = {"application/json": {"schema": schema, "example": about.pop("example")}}
        app.add_api_route(
            path, endpoint, methods=["POST"], summary=about["description"].split("\n")[0].replace("`", ""),
            dependencies=locked, **about,
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )  # fmt: skip

    async def tabulate(request: Endpoint, given: Any) -> Any:
        return {"rows": await batches.answer(request.job(given))}

    async def embed(given: Any) -> Any:
        body = parse(Embeddings, given, at="")
        request = requests["encode" if body.model == "encoder" else "embed"]
        vectors = [row["latent"] for row in await batches.answer(request.job({"texts": body.input}))]
        if body.encoding_format == "base64":
            vectors = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        tokens = sum(map(len, model.tokenizer.encode(body.input)))  # of the run's tokenizer
        return {
            "object": "list", "model": body.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
        }  # fmt: skip

    for name, request in requests.items():
        add(f"/{name}", request.body, partial(tabulate, request), **request.about)
    add(
        "/v1/embeddings", Embeddings, embed, example={"input": [TEXT]}, tags=[OPENAI],
        description="Embed texts by the run's encoder or by its model, in the convention of OpenAI.",
    )  # fmt: skip

    app.add_api_route("/", lambda: RedirectResponse("/docs"), include_in_schema=False)

    @app.get("/healthz", tags=[OPERATION])
    async def live() -> str:
        """Report that the process answers."""
        return "ok"

    @app.get("/readyz", tags=[OPERATION])
    async def loaded() -> str:
        """Report that the run and its encoder are loaded."""
        if not app.state.loading.done():
            raise HTTPException(503, "expected a loaded encoder, which is still being loaded. Ask again soon.")
        return "ok"

    meter = Instrumentator(registry=registry, should_group_status_codes=False).instrument(app)
    meter.expose(app, dependencies=locked, tags=[OPERATION])
    app.openapi().setdefault("components", {})["schemas"] = schemas
    return app


async def body_of(request: Request, most: int) -> Any:
    """Read the JSON of a request of at most `most` bytes."""
    kind = request.headers.get("content-type", "no type")
    if "json" not in kind:  # a page of another site can send other types without permission
        raise HTTPException(415, f"expected the header 'Content-Type: application/json', found {kind[:80]}. Send JSON.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"expected a body of at most {most:,} bytes, found more. Send less at once.")
    reason = "another value"
    try:
        if isinstance(found := from_json(body, allow_inf_nan=False), dict):
            return found
    except ValueError as error:
        reason = str(error)
    raise HTTPException(400, f"expected a JSON object in UTF-8, found something else ({reason}). {SEE}")


async def explain(request: Request, error: Any) -> Response:
    """Answer an error in OpenAI's form, with a message that states what was expected."""
    status = getattr(error, "status_code", 503 if isinstance(error, EncoderError) else 400)
    message = mask(str(getattr(error, "detail", error)))
    if status in (404, 405):
        message = (
            f"expected a path and a method of the page /docs, found {request.method} {request.url.path}. Correct it."
        )
    if isinstance(error, ConfigurationError):
        message += f" {SEE}"
    content = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
    return Response(to_json(content), status, getattr(error, "headers", None), "application/json")
