# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of a notebook: what it shows of outputs, and that names in them do no harm."""

from __future__ import annotations

from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kcensus.actions.notebooks.page import page
from kcensus.actions.notebooks.titles import titles
from kcensus.api.answers import Result
from kcensus.api.frames import Frame
from tests.unit.faces.test_render_html import HOSTILE, hostile_result

SVG = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
LOADING = {"src", "href", "srcset", "data", "action", "background", "poster"}


class Tags(HTMLParser):
    """The elements of a page, and what they load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in LOADING:
                self.loaded.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""


def data(**forms: str) -> NotebookNode:
    named = {name.replace("__", "+").replace("_", "/"): text for name, text in forms.items()}
    output: NotebookNode = new_output("display_data", named)
    return output


def hostile_notebook() -> NotebookNode:
    """A notebook with hostile names in all forms of output."""
    name = f"{HOSTILE} ![](http://example.invalid/x.png) [x](javascript:alert(1)) " + "y" * 4096
    result, frame = Result(hostile_result()), Frame({name: [name]})
    error = new_output("error", ename=name, evalue=name, traceback=[name, "\x1b[31m"])
    outputs = [
        data(text_markdown=f"`{name}`", text_plain="x"),
        data(text_markdown=f"{name} <http://example.invalid> [x][y]\n\n[y]: http://e.invalid"),
        data(text_html=result._repr_html_(), text_plain=repr(result)),
        data(text_html=frame._repr_html_(), text_plain=repr(frame)),
        data(text_html=frame.set_index(name).frame(labels=True, scale=True).to_html()),
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
    tags = Tags(text)
    assert not {"script", "iframe", "object", "link", "form"} & {*tags.tags}
    assert tags.handlers == []
    assert tags.tags.count("img") == 1
    assert [each[:18] for each in tags.loaded if not each.startswith("#")] == ["data:image/svg+xml"]
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
    frame = pd.DataFrame({"n": [12345], "x": [-1234.5], "none": [np.nan], "word": ["a <b> 12"]})
    html = frame.to_html()
    cell = new_code_cell("frame", outputs=[data(**{"text/html": html})])
    shown = page(new_notebook(cells=[cell]), code=False)
    assert "<td>12,345</td>" in shown
    assert "<td>-1,234.5</td>" in shown
    assert "<td>–</td>" in shown
    assert '<td class="words">a &lt;b&gt; 12</td>' in shown


def test_headings_of_words_are_above_the_words() -> None:
    frame = pd.DataFrame({"n": [1, 2], "word": ["a", None]}, index=pd.Index([3, 4], name="key"))
    cell = new_code_cell("frame", outputs=[data(**{"text/html": frame.to_html()})])
    shown = page(new_notebook(cells=[cell]), code=False)
    assert '<th class="words">word</th>' in shown
    assert "<th>n</th>" in shown
    assert "<th>key</th>" in shown
    assert '<td class="words">–</td>' in shown


def test_a_picture_has_the_titles_of_its_axes_as_text() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert titles(figure) == ""
    left.set_title(r"a \$b", loc="left")
    right.set_title("c")
    assert titles(figure) == "a $b; c"
    plt.close(figure)
