"""The page: whole by itself, well-formed, nothing in it run, everything in it told in words too."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.bench import page, recorded
from penstock.errors import PenstockError
from tests.bench import samples

VOID = {"meta", "link", "br", "img", "input", "hr", "base", "area", "col", "embed", "source", "track", "wbr"}
NASTY = "<script>alert(1)</script>"
ATTRIBUTE = '"><img src=x onerror=alert(1)> \' style="x'


class Read(HTMLParser):
    """Tags with their attributes, ids, the text of each, and what does not close as it opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.texts: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if len(dict(attrs)) != len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes another")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.texts.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def text_of(content: dict[str, Any]) -> str:
    return page.text(recorded.parse(content))


def nasty_engines() -> dict[str, Any]:
    names = [NASTY, ATTRIBUTE, "</style></title>", "a\x00b\x1b[31m\ud800", "\u202egnirts", "&amp;&lt;", "x" * 300]
    rows = [
        samples.row(name, [samples.cell(1, 1e-3, seed), samples.cell(8, 4e-3, seed)], precision=name, format=name)
        for seed, name in enumerate(names)
    ]
    rows.append(samples.row("gone", [], unavailable=NASTY, accuracy=None))
    return samples.engines(
        rows,
        reference=NASTY,
        notes=[NASTY],
        warnings=[{"text": NASTY, "remedy": ATTRIBUTE}],
        environment={NASTY: NASTY, "cpu": ATTRIBUTE, "gpu": {"gpu": NASTY}},
        ceiling={NASTY: ATTRIBUTE},
        verdict={"fastest": NASTY, "text": NASTY},
    )


def nasty_server() -> dict[str, Any]:
    runs = [
        samples.run("closed", 1, 1e-3, failures={NASTY: 3, ATTRIBUTE: 1}),
        samples.run("closed", 8, 1e-3, void=NASTY),
        samples.run(NASTY, 100, 1e-3),
    ]
    told = {"url": NASTY, "name": ATTRIBUTE, "model": NASTY, NASTY: NASTY}
    return samples.server(runs, server=told, payload={"form": NASTY}, notes=[NASTY])


PAGES = {
    "engines": samples.engines(),
    "server": samples.server(),
    "nasty engines": nasty_engines(),
    "nasty server": nasty_server(),
    "empty engines": samples.engines([], verdict=None, reference=None, ceiling=None, environment={}, clock={}),
    "empty server": samples.server([], capacity=None, slo=None, environment={}, server={}, payload={}),
    "interrupted": samples.engines(interrupted=True, clock={"rounds_s": [1e-3]}),
    "one row": samples.engines([samples.row("a", [{"batch": 1, "median_s": 1e-3}], accuracy=None)]),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_well_formed(name: str) -> None:
    read = Read(text_of(PAGES[name]))
    assert read.faults == []
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = {
        word
        for _, attributes in read.tags
        for key in ("aria-labelledby", "aria-describedby")
        for word in (attributes.get(key) or "").split()
    }
    linked = {(attributes["href"] or "")[1:] for attributes in read.all("a")}
    assert pointed | linked <= set(ids)
    assert {"nan", "inf", "None"}.isdisjoint(re.split(r"[\s,;()]+", " ".join(read.texts)))


@pytest.mark.parametrize("name", PAGES)
def test_every_chart_is_well_formed_svg_with_whole_numbers_in_its_paths(name: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", text_of(PAGES[name]), re.S):
        root = ElementTree.fromstring(svg)
        for item in root.iter():
            for key in ("d", "x", "y", "width", "height", "transform", "viewBox"):
                assert not re.search(r"nan|inf|e[+-]?\d", item.get(key, "")), item.attrib
            assert float(item.get("width", "0")) >= 0


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_asked_of_anybody_and_nothing_is_run(name: str) -> None:
    read = Read(text_of(PAGES[name]))
    tags = {tag for tag, _ in read.tags}
    assert tags.isdisjoint(
        {"script", "img", "link", "iframe", "object", "embed", "base", "form", "input", "image", "use"}
    )
    for tag, attributes in read.tags:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, attributes)
            assert key not in ("src", "style", "srcset", "action", "xlink:href", "ping", "formaction"), (
                tag,
                attributes,
            )
            assert key != "href" or (value or "").startswith("#"), (tag, attributes)
    assert not re.search(r"url\(|@import|expression", read.style)


@pytest.mark.parametrize("name", ["nasty engines", "nasty server"])
def test_texts_from_the_file_are_shown_as_they_are(name: str) -> None:
    read = Read(text_of(PAGES[name]))
    assert any(NASTY in text for text in read.texts)
    assert any(ATTRIBUTE in text for text in read.texts)


def test_what_cannot_be_shown_is_replaced() -> None:
    text = text_of(PAGES["nasty engines"])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff\u202e]", text)
    assert "a\ufffdb\ufffd[31m\ufffd" in text


def test_the_policy_lets_nothing_in_but_the_page_s_own_style() -> None:
    read = Read(text_of(PAGES["engines"]))
    policy = next(m["content"] for m in read.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(read.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@pytest.mark.parametrize("name", ["engines", "server"])
def test_it_can_be_read_without_seeing_and_without_a_mouse(name: str) -> None:
    read = Read(text_of(PAGES[name]))
    names = [tag for tag, _ in read.tags]
    assert read.all("html")[0]["lang"] == "en"
    assert [names.count(tag) for tag in ("header", "nav", "main", "footer", "h1", "title")][:5] == [1, 1, 1, 1, 1]
    assert read.all("a")[0]["href"] == "#main"
    levels = [int(tag[1]) for tag in names if re.fullmatch(r"h[1-6]", tag)]
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))
    charts = [svg for svg in read.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(charts) >= 4
    assert all(svg["role"] == "img" and svg["aria-labelledby"] for svg in charts)
    assert names.count("desc") == len(charts) == names.count("figure") == names.count("figcaption")
    scrolled = [div for div in read.all("div") if div.get("class") == "scroll"]
    assert len(scrolled) == names.count("table") == names.count("caption") > len(charts)
    assert all(div["tabindex"] == "0" and div["role"] == "region" for div in scrolled)
    assert all("scope" in th for th in read.all("th"))


def test_colour_is_not_the_only_sign() -> None:
    rows = [samples.row(f"net-{n}", [samples.cell(b, 1e-3 * (n + 1), n) for b in (1, 8)]) for n in range(8)]
    text = text_of(samples.engines(rows))
    legend = re.search(r'<ul class="legend">.*?</ul>', text, re.S)
    assert legend
    seen = [
        (
            re.search(r'dasharray="([^"]*)"', item),
            re.search(r'class="mark" transform', item),
            re.findall(r' d="([^"]*)"', item),
        )
        for item in re.findall(r"<li>.*?</li>", legend[0], re.S)
    ]
    assert len({(dash and dash[1], shapes[-1]) for dash, _, shapes in seen}) == 8


def test_light_and_dark_are_told_apart_by_the_reader_s_preference() -> None:
    style = Read(text_of(PAGES["engines"])).style
    assert "@media (prefers-color-scheme: dark)" in style
    light, dark = (
        set(re.findall(r"(--[\w-]+):", part)) for part in style.split("@media (prefers-color-scheme: dark)")[:2]
    )
    assert light - {"--"} == dark & light


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_texts_and_marks_stand_out_in_light_and_dark() -> None:
    style = Read(text_of(PAGES["engines"])).style
    schemes = style.split("@media (prefers-color-scheme: dark)")
    for scheme in (schemes[0], schemes[1].split("}")[0]):
        told = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for ground in ("ground", "panel"):
            for text in ("text", "soft", "link"):
                assert contrast(told[text], told[ground]) >= 4.5, (text, ground)
            for number in range(8):
                assert contrast(told[f"s{number}"], told[ground]) >= 4.5, (number, ground)
        assert contrast(told["text"], told["warn-ground"]) >= 4.5


def test_every_figure_of_the_file_is_in_the_table() -> None:
    text = " ".join(Read(text_of(PAGES["engines"])).texts)
    for name in ("net-fp32", "net-int8", "1.50 (1.40 to 1.60)", "25.0%", "A Processor", "1.32.0", "99.50%"):
        assert name in text
    assert "net-int8 is the fastest." in text


def test_the_pareto_front_is_marked() -> None:
    rows = [
        samples.row("slow-right", [samples.cell(1, 3e-3)], accuracy={"value": 0.99, "samples": 100}),
        samples.row("fast-wrong", [samples.cell(1, 1e-3)], accuracy={"value": 0.9, "samples": 100}),
        samples.row("beaten", [samples.cell(1, 4e-3)], accuracy={"value": 0.95, "samples": 100}),
    ]
    text = text_of(samples.engines(rows))
    assert "slow-right (fp32), on the front" in text
    assert "fast-wrong (fp32), on the front" in text
    assert "beaten (fp32), on the front" not in text
    assert "beaten (fp32)" in text


def test_failures_and_runs_that_do_not_count_are_told() -> None:
    runs = [samples.run("closed", 1, 1e-3, failures={"wrong": 20}), samples.run("closed", 8, 1e-3, void="late")]
    text = " ".join(Read(text_of(samples.server(runs))).texts)
    assert "1.00%" in text
    assert "wrong" in text
    assert "closed, 8 connections: does not count: late" in text
    assert "None: all of 6,000 requests were answered" in " ".join(Read(text_of(PAGES["server"])).texts)


def words_of(content: dict[str, Any]) -> str:
    return " ".join(Read(text_of(content)).texts)


def test_a_server_that_was_lost_is_told_as_lost() -> None:
    run = samples.run("closed", 4, 1e-3, ended="lost", stages_s=None)
    text = words_of(samples.server([run], lost=True, capacity=None, slo=None))
    assert "The server was lost" in text
    assert "closed, 4 connections (lost)" in text
    assert "No verdict" not in text
    assert "before the server could be asked" in text
    assert "tells no timings" not in text


def test_a_generator_that_gave_out_is_told_beside_the_rate() -> None:
    slo = {"slo_ms": 20, "rate_per_s": 480.0, "p99_s": 0.01, "generator_bound": True, "generator_gives_out_per_s": 510}
    text = words_of(samples.server(slo=slo))
    assert "Up to 480/s its p99 stays under 20 ms" in text
    assert "The generator gives out at 510/s, and not the server" in text


def test_a_rate_that_only_a_probe_kept_is_not_told_as_none() -> None:
    slo = {"slo_ms": 20, "rate_per_s": None, "probed_per_s": 100.0, "refuted_per_s": [100.0, 95.0]}
    text = words_of(samples.server(slo=slo))
    assert "Its p99 under 20 ms is not confirmed: a probe kept 100/s, and 2 longer runs from 95 to 100/s" in text
    assert "At no rate" not in text


def test_a_search_that_did_not_end_is_no_verdict_on_the_server() -> None:
    text = words_of(samples.server(slo={"slo_ms": 20, "finished": False}, interrupted=True))
    assert "under 20 ms did not end" in text
    assert "At no rate" not in text
    assert "rounds that were finished" not in text


def test_charts_hold_the_same_runs_and_probes_only_where_there_is_nothing_else() -> None:
    probe, confirm = (samples.run("constant", 200, 1e-3, purpose=purpose) for purpose in ("probe", "confirm"))
    text = text_of(samples.server([probe, confirm]))
    charts = "".join(re.findall(r"<figure>.*?</figure>", text, re.S))
    assert "constant, 200/s" in charts
    assert "(probe)" not in charts
    assert "constant, 200/s (probe)" in text
    assert "(probe)" in "".join(re.findall(r"<figure>.*?</figure>", text_of(samples.server([probe])), re.S))


def test_loadgen_s_verdict_is_the_page_s() -> None:
    told = {"scenario": "offline", "verdict": "LoadGen, Offline: VALID, 20,209.7 samples/s"}
    run = samples.run("loadgen offline", 1, 1e-3, rate_per_s=None, stages_s=None)
    text = words_of(samples.server([run], capacity=None, slo=None, loadgen=told))
    assert "LoadGen, Offline: VALID, 20,209.7 samples/s." in text
    assert "No verdict" not in text
    assert "tells no timings" not in text


def test_large_results_make_no_large_page() -> None:
    rows = []
    for number in range(6):
        made = samples.cell(1, 1e-3, number)
        made["rounds_s"] = [part * 100 for part in made["rounds_s"]]
        rows.append(samples.row(f"net-{number}", [made]))
    assert len(text_of(samples.engines(rows))) < 400_000


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--html .*gone/a\.html: cannot be written: No such file"):
        page.write(recorded.parse(samples.engines()), tmp_path / "gone" / "a.html")
    page.write(recorded.parse(samples.engines()), tmp_path / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_columns_that_say_nothing_are_left_out() -> None:
    shown = text_of(samples.engines())
    assert "J/row" not in shown
    rows = [samples.row("net", [{**samples.cell(1, 1e-3), "joules_per_row": 0.5}])]
    assert "J/row" in text_of(samples.engines(rows))


def test_peaks_are_told_in_words() -> None:
    peaks = {"2": {"operations_per_s": {"int8": 4e11}, "bytes_per_s": {"262144": 5e10, "2097152": 2e10}}}
    shown = text_of(samples.engines(ceiling={"peaks": peaks, "measured": "by products"}))
    for words in (
        "2 cores, int8",
        "400 G operations/s",
        "2 cores, reading 256 KiB",
        "2 cores, reading 2 MiB",
        "20 GB/s",
    ):
        assert words in shown
    assert "peaks.2" not in shown
