"""Registry of the pipelines that `kedro run --pipelines=` can name."""

from kedro.pipeline import Pipeline

from mm_ldlm.pipelines import MAIN, PIPELINES


def register_pipelines() -> dict[str, Pipeline]:
    """Create all pipelines by name; `__default__` is the main job, from raw text to the report."""
    built = {name: PIPELINES.load(name)() for name in PIPELINES}
    return {"__default__": sum((built[name] for name in MAIN), Pipeline([])), **built}
