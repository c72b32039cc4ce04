"""A run as an MLflow model: the exported run, code that loads it, a signature, an example and pinned requirements.

The code is a text file that imports this module; no object is pickled.
"""

from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel, PythonModelContext
from mlflow.types.schema import Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema
from packaging.requirements import Requirement

from mm_ldlm.app.commands import requests
from mm_ldlm.core import MMLDLMError
from mm_ldlm.extras.mlflow.requests import REQUEST, TEXT, VECTOR, answer, columns_of
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.exporting import Source, export
from mm_ldlm.inference.loading import kinds_of

CODE = """from mlflow.models import set_model

from mm_ldlm.extras.mlflow.model import RunModel

set_model(RunModel())
"""
RUN = "run"
"""Name of the artifact with the exported run"""


class RunModel(PythonModel):
    """Answers requests by an exported run."""

    def load_context(self, context: PythonModelContext) -> None:
        self.model = MMLDLM.from_run(context.artifacts[RUN])

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Answer a request; a refusal is an error of the client with its message."""
        try:
            return answer(self.model, model_input, params or {})
        except MMLDLMError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None


def save_model(source: Source, folder: Path) -> None:
    """Write the folder of an MLflow model, without the weights of the encoder, to `folder`/model."""
    export(source, folder / RUN)
    code = folder / "code.py"
    code.write_text(CODE, encoding="utf-8")
    mlflow.pyfunc.save_model(
        path=str(folder / "model"),
        python_model=str(code),
        artifacts={RUN: str(folder / RUN)},
        signature=signature(source),
        input_example=pd.DataFrame({TEXT: ["The girl drew a horse in the garden."]}),
        pip_requirements=requirements(),
    )


def signature(source: Source) -> ModelSignature:
    """Make the signature: two optional columns, and a parameter for each that a request has."""
    model, objective = kinds_of(source.config)
    capabilities = objective.capabilities(model)
    first = next((name for name in requests() if name in capabilities), "embed")
    every = [each for request in requests().values() for each in request.parameters]
    types = {each.name: each.kind for each in every if not columns_of(each)}
    named = {int: "long", float: "double", bool: "boolean"}
    params = [ParamSpec(name, named.get(kind, "string"), None) for name, kind in types.items()]
    params.insert(0, ParamSpec(REQUEST, "string", first))
    text, vector = ColSpec("string", TEXT, required=False), ColSpec(Array(DataType.double), VECTOR, required=False)
    return ModelSignature(inputs=Schema([text, vector]), params=ParamSchema(params))


def requirements() -> list[str]:
    """Pin this package and its dependencies to the installed versions, without the suffix of a build."""
    needed = [Requirement(each) for each in requires("mm-ldlm") or ()]
    names = ["mm-ldlm", *(each.name for each in needed if each.marker is None)]
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]
