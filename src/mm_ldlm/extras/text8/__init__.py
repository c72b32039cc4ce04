"""The source `text8`: 100 million characters of Wikipedia, divided as in publications."""

COMPONENTS: dict[str, dict[str, str]] = {"sources": {"text8": "mm_ldlm.extras.text8.source:Text8Config"}}
