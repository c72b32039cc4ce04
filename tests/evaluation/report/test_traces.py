"""The page of traces: complete without a server, and safe from the words of its texts."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from tests.evaluation.report.test_page import HOSTILE
from tests.inference.runs import LATENTS, make

from mm_ldlm.evaluation.report.traces import played, trace_page


@pytest.mark.parametrize("text", HOSTILE)
def test_the_page_contains_its_traces_and_no_word_leaves_its_place(text: str) -> None:
    found = make().traced().invert(LATENTS, search=True)
    last = dataclasses.replace(found.traces[0].steps[-1], words=(text,), likely=(((text, 1.0),),))
    hostile = dataclasses.replace(found.traces[0], steps=(*found.traces[0].steps, last))
    found = dataclasses.replace(
        found, texts=(text, *found.texts[1:]), traces=(hostile, *found.traces[1:]), model_calls=np.arange(4)
    )
    page = trace_page(found, title=text)
    embedded = re.search(r'<script type="application/json" id="traces">(.*?)</script>', page, re.DOTALL)
    assert json.loads(embedded[1]) == json.loads(json.dumps(played(found)))
    assert [each["calls"] for each in json.loads(embedded[1])] == found.model_calls.tolist()
    assert f"<h3>{html.escape(text, quote=False)}</h3>" in page
    assert not re.search(
        r"https?:(?!..www.w3.org)|<link rel=.stylesheet|<script src|@import|<img", page.replace(embedded[0], "")
    )
