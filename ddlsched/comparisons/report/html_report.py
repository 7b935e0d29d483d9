"""``ddlsched report``: a comparison's folder as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ddlsched.comparisons.charts.style import colours, on_dark
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.report import report_tables
from ddlsched.comparisons.report.comparison_charts import draw_charts
from ddlsched.comparisons.report.figures import InteractiveChart, interactive_charts, placement_chart
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.errors import need, says_unknown_arguments
from ddlsched.io.files import refuse_unwritable, replacing

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_TOTALS = {"jobs": "Finished jobs that count", "unfinished_jobs": "Unfinished jobs", "events": "Simulated events"}


@says_unknown_arguments
def report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of a comparison, and its charts as PNG and SVG into the folder's ``charts/``.

    Parameters
    ----------
    folder
        What ``ddlsched compare`` wrote.
    out
        The HTML file, by default ``report.html`` in the folder; links to charts and timelines lead from there.

    Returns
    -------
    Path
        The HTML file. The same folder gives the same bytes.

    Raises
    ------
    InputError
        It is no comparison's folder, a file of it cannot be read, the report cannot be written, or plotly is
        not installed.
    """
    need("the report", "plotly", "jinja2", extra="report")
    from plotly.offline import get_plotlyjs

    reported = Reported.open(folder)
    path = reported.comparison.folder / "report.html" if out is None else Path(out)
    refuse_unwritable(path, "the report", (".html", ".htm"))
    charts = draw_charts(reported)
    content = _content(reported, charts, path.parent)
    page = _environment().get_template("report.html").render(library=get_plotlyjs(), **_assets(), **content)
    with replacing(path, "the report") as file:
        file.write_text(page, encoding="utf-8")
    return path


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ddlsched.comparisons.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _breakable(label: str) -> Markup:
    """Return a policy's label, escaped, with the places where a line may end."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.findall(r"[^:/,=]*[:/,=]+|[^:/,=]+", label))  # which escapes what it joins


def _assets() -> dict[str, str]:
    """Return the page's own style sheet and script."""
    here = Path(__file__).parent / "page"
    return {"style": (here / "report.css").read_text("utf-8"), "script": (here / "report.js").read_text("utf-8")}


def _content(reported: Reported, charts: Sequence[Path], place: Path) -> dict[str, Any]:
    """Return what the template shows; ``place`` is where links lead from."""
    shade, asked = colours(reported.policies), reported.comparison.asked
    sections = [_section(reported, setting) for setting in reported.settings]
    drawn = [chart for section in sections for chart in (*section["charts"], *section["placements"])]
    return {
        "title": _title(reported),
        "policies": [
            {"label": policy, "light": shade[policy], "dark": on_dark(shade[policy])} for policy in reported.policies
        ],
        "number": {policy: place for place, policy in enumerate(reported.policies)},
        "baseline": reported.comparison.baseline,
        "seeds": _seeds(asked["seeds"], asked.get("draws", 1), asked.get("drawn_workloads", ()), asked["workloads"]),
        "overview": report_tables.overview(reported)
        if len(reported.settings) > 1 and len(reported.policies) > 1
        else None,
        "notes": reported.comparison.notes(),
        "sections": sections,
        "chart_data": [chart["data"] for chart in drawn if chart["data"]],
        "failures": reported.comparison.failures.to_dict("records"),
        "configuration": list(_configuration(reported)),
        "command": shlex.join(asked["command"]),
        "working_folder": asked.get("working_folder"),
        "timelines": list(_timelines(reported, place)),
        "files": [(file.relative_to(reported.comparison.folder / "charts"), _link(file, place)) for file in charts],
        "sizes": list(_sizes(reported)),
        "version": asked["ddlsched"],
    }


def _title(reported: Reported) -> str:
    policies = f"{len(reported.policies)} policies" if len(reported.policies) > 1 else reported.policies[0]
    where = " on ".join(reported.settings[0]) if len(reported.settings) == 1 else f"{len(reported.settings)} settings"
    return f"{policies}, {where}"


def _seeds(seeds: Sequence[int], draws: int, drawn: Sequence[str], workloads: Collection[str]) -> str:
    """Return seeds as a range where they are one; of workloads that have draws in their place, how many."""
    if drawn:
        others = f", {_seeds(seeds, draws, (), ())}" if len(drawn) < len(workloads) else ""
        return f"{draws} draws of lengths that differ by 0.1 % or one iteration{others}"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]})"
    return f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'} ({', '.join(map(str, seeds))})"


def _section(reported: Reported, setting: ComparedSetting) -> dict[str, Any]:
    """Return the tables and charts of one workload on one cluster."""
    number = reported.settings.index(setting)
    charts = [
        _chart(chart, f"chart-{number}-{place}") for place, chart in enumerate(interactive_charts(reported, setting))
    ]
    placements = list(_placements(reported, setting)) if number == 0 else []
    first_class, *other_classes = [*report_tables.class_tables(reported, setting), None]
    further = (report_tables.slowdown_table, report_tables.phase_table, report_tables.door_table)
    compared = [report_tables.main_table(reported, setting), first_class]
    compared += [table(reported, setting) for table in further]
    return {
        "id": f"setting-{number}",
        "name": f"{setting.workload} on {setting.cluster}",
        "verdicts": report_tables.verdicts(reported, setting),
        "doubtful": any(table and table.doubtful for table in (*compared, *other_classes)),
        "tables": [table for table in compared if table and table.columns],
        "more_tables": [table for table in other_classes if table],
        "charts": charts,
        "placements": placements,
    }


def _chart(chart: InteractiveChart, name: str, policy: int | None = None) -> dict[str, Any]:
    data = {"id": name} | {key: value for key, value in vars(chart).items() if key not in ("title", "note")}
    shown = {"title": chart.title, "note": chart.note, "height": chart.height}
    return {"id": name, **shown, "data": data, "policy": policy}


def _placements(reported: Reported, setting: ComparedSetting) -> Iterator[dict[str, Any]]:
    """Yield the placement maps; one that is too large to be interactive as a picture."""
    for number, policy in enumerate(reported.policies):
        placements = reported.placements(policy)
        if placements is None or placements.empty:
            continue
        chart = placement_chart(placements, reported.servers(setting.cluster), policy)
        if chart is not None:
            yield _chart(chart, f"placement-{number}", number) | {"title": policy, "picture": None}
            continue
        drawn = reported.charts(setting) / f"placement-{slug(policy)}.png"
        yield {
            "id": f"placement-{number}",
            "title": policy,
            "note": "First seed. Too many placements for an interactive chart, so a picture.",
            "policy": number,
            "data": None,
            "picture": "data:image/png;base64," + base64.b64encode(drawn.read_bytes()).decode(),
        }


def _configuration(reported: Reported) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the parts of ``comparison.json``: a name, and pairs of a label and what it stands for."""
    asked = dict(reported.comparison.asked)
    for part in ("policies", "workloads", "clusters"):
        yield part.capitalize(), [(label, _spec(spec)) for label, spec in asked.pop(part).items()]
    seeds = asked.pop("seeds")
    for known in ("command", "working_folder", "ddlsched"):
        asked.pop(known, None)
    rest = [(name.replace("_", " "), _spec(value)) for name, value in asked.items() if value not in ({}, [], None)]
    yield "Other", [*rest, ("seeds", ", ".join(map(str, seeds)))]


def _spec(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_spec(inner)}" for key, inner in value.items()) or "defaults"
    if isinstance(value, list) and not any(isinstance(inner, dict | list) for inner in value):
        return ", ".join(map(_spec, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _timelines(reported: Reported, place: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield the policy, the file's name, a link and its size of each timeline."""
    for policy in reported.policies:
        path = reported.comparison.kept("timeline", policy)
        if path is not None:
            yield policy, f"timelines/{path.name}", _link(path, place), _bytes(path.stat().st_size)


def _link(path: Path, place: Path) -> str:
    return quote(os.path.relpath(path, place).replace(os.sep, "/"))


def _sizes(reported: Reported) -> Iterator[tuple[str, str]]:
    """Yield what there is and how much of it."""
    runs = reported.comparison.runs.drop_duplicates("file")
    yield "Finished runs", f"{len(runs):,}"
    yield "Failed runs", f"{len(reported.comparison.failures):,}"
    for column, name in _TOTALS.items():
        if column in runs.columns:
            yield f"{name}, all runs", f"{runs[column].sum():,.0f}"
    for cluster in dict.fromkeys(setting.cluster for setting in reported.settings):
        yield f"GPUs of {cluster}", f"{sum(reported.servers(cluster)):,}"
    if "engine_s" in runs.columns:
        yield "Time in the engine, all runs", f"{runs['engine_s'].sum():,.1f} s"
    yield "Files of runs", _bytes(sum(path.stat().st_size for path in set(reported.comparison.files())))


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
