"""The endpoints of the service, its errors and its metrics."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException

from mm_ldlm.core import EncoderError, MMLDLMError, config, mask, parse
from mm_ldlm.extras.service.batches import MOST_JOBS, Batches
from mm_ldlm.extras.service.requests import Endpoint, Limits, endpoints, rows_of
from mm_ldlm.inference import MMLDLM


def build(model: MMLDLM, limits: Limits, *, key: str | None = None) -> FastAPI:
    """Make the service of a model; with a key, requests need it."""
    registry, requests = CollectorRegistry(), endpoints(limits)
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
                401, "expected the header 'Authorization: Bearer KEY' with the key of this service.",
                {"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    locked = [] if key is None else [Depends(authorised)]
    app = FastAPIOffline(
        title="MM-LDLM", redoc_url=None, lifespan=lifespan,
        description=f"{model!r}\n\nNo field is a path: where its help names a file, send texts or vectors instead.",
        exception_handlers={MMLDLMError: explain, HTTPException: explain},
    )  # fmt: skip
    schemas: dict[str, Any] = {}

    @config
    class Embeddings:
        input: rows_of(limits, texts=True, vectors=False)  # type: ignore[valid-type]
        model: Literal["encoder", "model"] = "encoder"
        encoding_format: Literal["float", "base64"] = "float"
        dimensions: None = None
        user: str | None = None

    def add(path: str, body: type, help: str, respond: Callable[[Any], Awaitable[Any]]) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                found = await respond(await body_of(request, limits.max_bytes))
            except asyncio.CancelledError:  # by the server, whose time to stop is over
                raise HTTPException(503, "expected a running service, found one that stops. Ask again soon.") from None
            content = to_json(found, inf_nan_mode="null", fallback=lambda array: array.tolist())
            return Response(content, media_type="application/json")

        schema = TypeAdapter(body).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        app.add_api_route(
            path, endpoint, methods=["POST"], name=path[1:], description=help, dependencies=locked,
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        )  # fmt: skip

    async def tabulate(request: Endpoint, given: Any) -> Any:
        return {"rows": await batches.answer(request.job(given))}

    async def embed(given: Any) -> Any:
        body = parse(Embeddings, given, at="embeddings")
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
        add(f"/{name}", request.body, request.help, partial(tabulate, request))
    add("/v1/embeddings", Embeddings, "Embed texts by the run's encoder or by its model; OpenAI's convention.", embed)

    @app.get("/healthz")
    async def live() -> str:
        """Report that the process answers."""
        return "ok"

    @app.get("/readyz")
    async def loaded() -> str:
        """Report that the run and its encoder are loaded."""
        if not app.state.loading.done():
            raise HTTPException(503, "expected a loaded encoder, which is still being loaded. Ask again soon.")
        return "ok"

    Instrumentator(registry=registry, should_group_status_codes=False).instrument(app).expose(app, dependencies=locked)
    app.openapi().setdefault("components", {})["schemas"] = schemas
    return app


async def body_of(request: Request, most: int) -> Any:
    """Read the JSON of a request of at most `most` bytes."""
    kind = request.headers.get("content-type", "no type")
    if "json" not in kind:  # a page of another site can send other types without permission
        raise HTTPException(415, f"expected the header 'Content-Type: application/json', found {kind[:80]}.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"expected a body of at most {most:,} bytes, found more. Send less at once.")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"expected JSON in UTF-8, found something else ({error}). Correct it.") from None


async def explain(request: Request, error: Any) -> Response:
    """Answer an error in OpenAI's form, with a message that states what was expected."""
    status = getattr(error, "status_code", 503 if isinstance(error, EncoderError) else 400)
    message = mask(str(getattr(error, "detail", error)))
    if status in (404, 405):
        message = f"expected a request of the page /docs, found {request.method} {request.url.path} ({message})."
    content = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
    return Response(to_json(content), status, getattr(error, "headers", None), "application/json")
