# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of a notebook: what it shows of outputs, and that names in them do no harm."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kcensus.api.answers import Result
from kcensus.api.frames import Frame
from kcensus.commands.notebook.display import table, titles
from kcensus.commands.notebook.page import page
from tests.unit.pages import HOSTILE, Page, hostile_result

SVG = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
LOADING = {"src", "href", "srcset", "data", "action", "background", "poster"}


def data(**forms: str) -> NotebookNode:
    named = {name.replace("__", "+").replace("_", "/"): text for name, text in forms.items()}
    output: NotebookNode = new_output("display_data", named)
    return output


def hostile_notebook() -> NotebookNode:
    name = f"{HOSTILE} ![](http://example.invalid/x.png) [x](javascript:alert(1)) " + "y" * 4096
    result, frame = Result(hostile_result()), Frame({name: [name]})
    error = new_output("error", ename=name, evalue=name, traceback=[name, "\x1b[31m"])
    outputs = [
        data(text_markdown=f"`{name}`", text_plain="x"),
        data(text_markdown=f"{name} <http://example.invalid> [x][y]\n\n[y]: http://e.invalid"),
        data(text_markdown="&#x202e; &#27; &#x1b;[31m"),
        data(text_html=result._repr_html_(), text_plain=repr(result)),
        data(text_html=frame._repr_html_(), text_plain=repr(frame)),
        data(text_html=table(frame)),
        data(text_html=table(frame.set_index(name).frame(labels=True, scale=True))),
        data(image_svg__xml=SVG, text_plain=name),
        data(text_plain=name),
        new_output("stream", name="stderr", text=name),
        error,
    ]
    prose = new_markdown_cell(f"# {HOSTILE}\n\n<script>alert(1)</script>\n\n{HOSTILE}")
    code = new_code_cell("print('<script>')", outputs=outputs)
    node: NotebookNode = new_notebook(cells=[prose, code])
    return node


@pytest.mark.parametrize("code", [False, True])
def test_names_do_no_harm(code: bool) -> None:
    text = page(hostile_notebook(), code=code)
    tags = Page(text)
    loaded = [value for name, value in tags.attributes if name in LOADING]
    assert not {"script", "iframe", "object", "link", "form"} & {*tags.tags}
    assert tags.handlers == []
    assert tags.tags.count("img") == 1
    assert [each[:18] for each in loaded if not each.startswith("#")] == ["data:image/svg+xml"]
    assert "default-src 'none'" in tags.policy
    assert "script-src" not in tags.policy
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_title_says_what_it_is_about() -> None:
    node = hostile_notebook()
    node.cells[0].source = "# Report"
    node.cells[1].outputs[0].metadata["kcensus"] = {"subject": "</title>\x1b"}
    assert "<title>Report: &lt;/title&gt;\\x1b</title>" in page(node, code=False)


def test_code_is_shown_on_request() -> None:
    node = hostile_notebook()
    assert "print(" not in page(node, code=False)
    assert "print(&#39;&lt;script&gt;&#39;)" in page(node, code=True)
    node.metadata["kcensus"] = {"show_code": True}
    assert "print(" in page(node, code=False)


def test_the_richest_form_is_shown() -> None:
    outputs = [
        data(text_plain="AAA", text_html="<b>BBB</b>"),
        data(text_markdown="**CCC**", text_plain="DDD"),
        data(text_plain="EEE"),
        new_output("stream", name="stdout", text="FFF\n"),
        new_output("stream", name="stdout", text="\n"),
    ]
    cell = new_code_cell("", outputs=outputs)
    text = page(new_notebook(cells=[cell]), code=False)
    for shown in ("<b>BBB</b>", "<strong>CCC</strong>", "<pre>EEE</pre>", "<pre>FFF</pre>"):
        assert shown in text
    assert "AAA" not in text
    assert "DDD" not in text


def test_tables_are_for_readers() -> None:
    columns = {"n": [12345], "x": [-1234.5], "none": [np.nan], "word": ["a <b> 12"], "is": [True]}
    shown = table(pd.DataFrame(columns))
    numbers = ("<td>12,345</td>", "<td>-1,234.5</td>", "<td>–</td>")
    for cell in ("<th>n</th>", '<th class="words">word</th>', *numbers):
        assert cell in shown
    for words in ("a &lt;b&gt; 12", "True"):
        assert f'<td class="words">{words}</td>' in shown


def test_an_excerpt_has_the_first_and_the_last_rows() -> None:
    shown = table(Frame({"address": np.arange(100, dtype=np.uint64) + (0xFFFF << 48)}))
    assert "<p>100 rows × 1 columns</p>" in shown
    assert shown.count("0xffff") == 10
    assert shown.count("…") == 2


def test_a_picture_has_the_titles_of_its_axes_as_text() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert titles(figure) == ""
    left.set_title(r"a \$b", loc="left")
    right.set_title("c")
    assert titles(figure) == "a $b; c"
    plt.close(figure)
