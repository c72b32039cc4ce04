"""Generator of the starter corpus and its STS set."""

COMPONENTS: dict[str, dict[str, str]] = {}
