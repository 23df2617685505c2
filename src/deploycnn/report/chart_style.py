"""The colours of charts as CSS: the same on the page and in a static SVG file."""

from __future__ import annotations

from deploycnn.report.palette import DARK, LIGHT

_INK = {
    "light": {"ink": "#1a2027", "soft": "#57606a", "line": "#d5dae0", "grid": "#e8ebee", "ship": "#00674b", "paper": "#ffffff"},
    "dark": {"ink": "#e7ebef", "soft": "#a1abb6", "line": "#39424d", "grid": "#272f38", "ship": "#4fd1a5", "paper": "#161b21"},
}

CHART = """
.chart text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.chart .tick,.chart .axis{fill:var(--soft)} .chart .name,.chart .figure{font-variant-numeric:tabular-nums}
.chart .name,.chart .haloed{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.chart .strong{font-weight:700} .chart .name.strong{fill:var(--ship)}
.chart .grid{stroke:var(--grid)} .chart .base{stroke:var(--line)}
.chart .limit{stroke:var(--soft);stroke-dasharray:5 4} .chart .front{fill:none;stroke:var(--ship);stroke-width:1.5;stroke-dasharray:2 3}
.chart .whisker{stroke:var(--c);stroke-opacity:.45;stroke-width:1.5} .chart .marker{fill:var(--c);stroke:var(--paper);stroke-width:1}
.chart .hollow{fill:var(--paper);stroke:var(--c);stroke-width:2} .chart .ring{fill:none;stroke:var(--ship);stroke-width:2}
.chart .line{fill:none;stroke:var(--c);stroke-width:1.7;stroke-opacity:.85}
.chart .k4{stroke-dasharray:7 4} .chart .k3{stroke-dasharray:2 3} .chart .k5,.chart .k6,.chart .k40{stroke-dasharray:9 3 2 3}
.chart .line.strong{stroke-width:3;stroke-opacity:1}
.chart .lead{fill:none;stroke:var(--c);stroke-opacity:.6} .chart .density{fill:var(--c);fill-opacity:.32;stroke:var(--c);stroke-width:1}
.chart .interval{stroke:var(--c);stroke-width:6;stroke-opacity:.75} .chart .tail{stroke:var(--c);stroke-width:2}
.chart .median{fill:var(--c);stroke:var(--paper)} .chart .hit{fill:transparent}
.chart .paper{fill:var(--paper)} .chart .roof{fill:none;stroke:var(--ink);stroke-width:1.5}
"""


def palette_css() -> str:
    """Chart rules, and the series' colours for light and dark. The page can be switched by `data-theme` on its root."""
    series = "".join(f".s{i}{{--c:var(--s{i})}}" for i in range(len(LIGHT)))
    light, dark = _variables("light", LIGHT), _variables("dark", DARK)
    return (
        f"{CHART}{series}:root{{{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}:root[data-theme=dark]{{{dark}}}"
        f"@media print{{:root,:root[data-theme=dark],:root:not([data-theme=light]){{{light}}}}}"
    )


def file_css() -> str:
    """For an SVG file of its own, which nobody switches."""
    series = "".join(f".s{i}{{--c:var(--s{i})}}" for i in range(len(LIGHT)))
    dark = f"@media (prefers-color-scheme:dark){{.chart{{{_variables('dark', DARK)}}}}}"
    return f"{CHART}{series}.chart{{{_variables('light', LIGHT)}}}{dark}"


def _variables(theme: str, colours: tuple[str, ...]) -> str:
    names = {**_INK[theme], **{f"s{i}": colour for i, colour in enumerate(colours)}}
    return "".join(f"--{name}:{value};" for name, value in names.items())
