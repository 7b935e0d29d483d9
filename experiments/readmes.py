"""Tables and pictures of the experiments' READMEs, made of their committed CSV files so that they cannot drift.

python experiments/readmes.py               writes the tables of every README anew
python experiments/readmes.py --pictures    draws the pictures, too

A comment above a table names its file, its rows (a query) and its columns: a heading, a column and how it is shown::

    <!-- table expected/policies.csv | metric == 'average_jct_s'
    policy = policy
    JCT (s) = mean .0 interval
    change, % = change x100 +.1 interval where seeds == 100
    -->

``.1`` are decimals, ``+`` a sign, ``x100`` a factor, ``interval`` the ends, of the columns that end in ``_low`` and
``_high`` or are called ``low`` and ``high``, ``interval:other`` those of other columns. A name with blanks stands in
backticks. Rows that only a ``where`` tells apart are joined by the columns that are texts. A comment above an image has
``picture``, labels and one number; the axis is the number's heading. A label ``in colours`` has dots on one line.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlsched.comparisons.charts.style import INK, PALETTE, in_style, new_figure, wrapped

HERE = Path(__file__).parent
_BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
NAMED = re.compile(r"(`.+?`|\S+)(.*)")
MADE = re.compile(r"<!-- (table|picture) (.+?)\n(.*?)-->\n\n?(!\[.*?\]\((.*?)\)|(?:\|[^\n]*\n)*)", re.DOTALL)


class Column(NamedTuple):
    """A column of a table, as its line in the comment says."""

    heading: str
    name: str
    how: tuple[str, ...]
    where: str

    @classmethod
    def of(cls, line: str) -> Column:
        """Return the column of a line."""
        heading, _, rest = line.partition(" = ")
        shown, _, where = rest.partition(" where ")
        name, how = NAMED.fullmatch(shown.strip()).groups()  # type: ignore[union-attr]
        return cls(heading.strip(), name.strip("`"), tuple(how.split()), where.strip())

    @property
    def is_text(self) -> bool:
        """Whether it is shown as it stands."""
        return self.how in ((), ("in", "colours"))

    def numbers(self, row: pd.Series) -> list[float]:
        """Return the value and, where they are shown, the ends of its interval."""
        factor = next((float(word[1:]) for word in self.how if word.startswith("x")), 1.0)
        shown = next((word for word in self.how if word.startswith("interval")), "")
        prefix = shown.partition(":")[2]
        names = [self.name]
        if shown:
            prefix = f"{prefix or self.name}_"
            names += [next(name for name in (prefix + end, end, f"{end}_%") if name in row) for end in ("low", "high")]
        return [factor * float(row[name]) for name in names]

    def text(self, row: pd.Series) -> str:
        """Return what is shown of a row."""
        if self.is_text:
            return str(row[self.name])
        form = next(word for word in self.how if word.lstrip("+").startswith("."))
        decimals = int(form.lstrip("+."))
        value, *ends = (f"{round(number, decimals) + 0.0:{form.replace('.', ',.')}f}" for number in self.numbers(row))
        if "nan" in (value, *ends):
            return "" if value == "nan" else value
        if ends and self.numbers(row) == [0.0, 0.0, 0.0]:
            return ""  # the baseline beside itself
        return f"{value} [{ends[0]}, {ends[1]}]" if ends else value


def chosen(folder: Path, given: str) -> pd.DataFrame:
    """Return the rows of a CSV file that ``FILE | QUERY`` names."""
    file, _, query = given.partition(" | ")
    frame = pd.read_csv(folder / file.strip())
    return frame.query(query) if query else frame


def table(folder: Path, given: str, lines: str) -> str:
    """Return the Markdown table that a comment asks for."""
    frame, columns = chosen(folder, given), [Column.of(line) for line in lines.strip().splitlines()]
    keys = [column.name for column in columns if column.is_text]
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for column in columns:
        part = frame.query(column.where) if column.where else frame
        for _, row in part.iterrows():
            cells = found.setdefault(tuple(str(row[key]) for key in keys), {each.heading: "" for each in columns})
            cells[column.heading] = column.text(row)
    head = [[column.heading for column in columns], ["---"] * len(columns)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (*head, *(row.values() for row in found.values())))


@in_style()
def draw(folder: Path, given: str, lines: str, target: Path) -> None:
    """Draw a dot a row with its interval and its value, the first on top; those that colours tell apart on one line."""
    frame = chosen(folder, given)
    *labels, number = (Column.of(line) for line in lines.strip().splitlines())
    coloured = [label for label in labels if label.how]
    plain = [label for label in labels if not label.how]
    names = [wrapped(", ".join(label.text(row) for label in plain), 40) for _, row in frame.iterrows()]
    kinds = [", ".join(label.text(row) for label in coloured) for _, row in frame.iterrows()]
    if not coloured and len({*names}) < len(names):
        raise ValueError(f"{given}: rows have the same labels; expected a label in colours")
    colours = dict(zip(dict.fromkeys(kinds), PALETTE.values() if coloured else [PALETTE["sky"]], strict=False))
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    figure, axes = new_figure(0.8 + sum(0.1 + 0.15 * (1 + name.count("\n")) for name in places), width_inches=5.6)
    for name, kind, (_, row) in zip(names, kinds, frame.iterrows(), strict=True):
        value, *ends = number.numbers(row)
        axes.plot(ends, [places[name]] * len(ends), color=INK, linewidth=1.0)
        axes.plot([value], [places[name]], "o", color=colours[kind], markersize=5, label=kind)
        if not coloured:
            told = number._replace(how=tuple(word for word in number.how if not word.startswith("interval"))).text(row)
            at = max([value, *ends]), places[name]
            axes.annotate(told, at, (5, 0), textcoords="offset points", va="center", bbox=_BLANK)
    if coloured:
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles))
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.margins(x=0.16)
    axes.set_yticks(range(len(places)), places)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_xlabel(number.heading, loc="right")
    axes.grid(axis="x")
    figure.savefig(target, dpi=160)


def made_anew(readme: Path, *, pictures: bool = False) -> str:
    """Return a README with its tables made anew; with ``pictures``, draw its pictures."""

    def part(found: re.Match[str]) -> str:
        kind, given, lines, old, image = found.groups()
        if kind == "table":
            head = found[0].removesuffix(old).rstrip("\n")
            return f"{head}\n\n{table(readme.parent, given, lines)}" + "\n" * (1 if old else 2)
        if pictures:
            draw(readme.parent, given, lines, readme.parent / image)
        return found[0]

    return MADE.sub(part, readme.read_text(encoding="utf-8"))


def main() -> None:
    """Write the tables, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--only", metavar="EXPERIMENT")
    given = parser.parse_args()
    for readme in sorted(HERE.glob(f"{given.only or '*'}/README.md")):
        readme.write_text(made_anew(readme, pictures=given.pictures), encoding="utf-8")


if __name__ == "__main__":
    main()
