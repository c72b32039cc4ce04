"""HTTP service of a run: its requests and OpenAI-compatible embeddings (`mm-ldlm serve`).

`command` is the command, `app` the endpoints, `requests` the types of their bodies, and `batches` computes the requests
of several clients together.
"""

COMPONENTS: dict[str, dict[str, str]] = {"commands": {"serve": "mm_ldlm.extras.service.command:serve"}}
