"""Engine that runs tasks on a Ray cluster."""

COMPONENTS: dict[str, dict[str, str]] = {"engines": {"ray": "mm_ldlm.extras.ray.engine:RayEngineConfig"}}
