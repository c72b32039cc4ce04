"""Generator of the starter corpus and its STS set."""

COMPONENTS: dict[str, dict[str, str]] = {"sts_formats": {"starter": "mm_ldlm.extras.starter.sts:read_starter"}}
