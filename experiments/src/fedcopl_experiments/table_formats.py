"""Tables as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence

from .result_tables import ColumnName, ResultTable, TableBlock, TableEntry

MISSING = "–"
MAX_NARROW_COLUMNS = 7  # columns of numbers that fit on a page
LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "β": r"$\beta$",
    "τ1": r"$\tau_1$",
    "τ2": r"$\tau_2$",
    "τ": r"$\tau$",
    "✓": r"$\surd$",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "†": r"\dag{}",
}


def our_number(entry: TableEntry, decimals: int) -> str:
    """Format our number: mean ± std, and the gain in brackets."""
    mean, std = entry.sample.mean, entry.sample.std
    if mean is None:
        return MISSING
    text = f"{mean:,.{decimals}f}".replace("-", "−") + (
        f" ± {std:.{decimals}f}" if std is not None and entry.spread else ""
    )
    return text + (f" ({signed(entry.gain, decimals)})" if entry.gain is not None else "")


def paper_number(entry: TableEntry, decimals: int) -> str:
    """Format the paper's number, its gain, a dagger if it is doubtful, and our difference to it."""
    if entry.paper is None:
        return ""
    gain = f" ({signed(entry.paper.gain, decimals)})" if entry.paper.gain is not None else ""
    text = f"{entry.paper.value:,.{decimals}f}{gain}{entry.dagger}"
    return text if entry.difference is None else f"{text}, {signed(entry.difference, decimals)}"


def signed(number: float, decimals: int) -> str:
    """Format with a sign and a true minus; a number that rounds to zero has no sign."""
    text = f"{abs(number):,.{decimals}f}"
    if not float(text.replace(",", "")):
        return text
    return ("+" if number > 0 else "−") + text


def to_markdown(table: ResultTable) -> str:
    notes = [f"{note}  " for note in table.notes]
    return "\n".join([f"**{table.name}.** {table.caption}", "", markdown_grid(table), *notes]).rstrip() + "\n"


def markdown_grid(table: ResultTable) -> str:
    """Return the rows and columns without caption and notes, with the titles of blocks as rows."""
    head = [*table.heads, *(" ".join(column) for column in table.columns)]
    align = ["---"] * len(table.heads) + ["---:"] * len(table.columns)
    lines = [_pipes(head), _pipes(align, pad="")]
    for block in table.blocks:
        if block.title:
            lines.append(_pipes([f"*{block.title}*", *[""] * (len(head) - 1)]))
        for row, entries in block.rows:
            lines.append(_pipes([*row, *(_markdown_cell(entry, table.decimals) for entry in entries)]))
    return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str], pad: str = " ") -> str:
    return "|" + "|".join(f"{pad}{cell.replace('|', chr(92) + '|')}{pad}" for cell in cells) + "|"


def _markdown_cell(entry: TableEntry | None, decimals: int) -> str:
    if entry is None:
        return ""
    wrap = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}[entry.mark]
    text = wrap.format(our_number(entry, decimals))
    return f"{text}<br>{paper_number(entry, decimals)}" if entry.paper else text


def to_latex(table: ResultTable) -> str:
    """Return a floating table; a wide one spans the page."""
    is_wide = len(table.columns) > MAX_NARROW_COLUMNS
    packages = ("booktabs", "graphicx") if is_wide else ("booktabs",)
    kinds = "l" * len(table.heads) + "c" * len(table.columns)
    body = [f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", *_latex_head(table)]
    for block in table.blocks:
        body += ["\\midrule", *_latex_block(block, len(kinds), table.decimals)]
    body += ["\\bottomrule", "\\end{tabular}"]
    if is_wide:
        body = ["\\resizebox{\\textwidth}{!}{%", *body, "}"]
    kind = "table*" if is_wide else "table"
    above = [
        "% needs " + " ".join(f"\\usepackage{{{name}}}" for name in packages),
        f"\\begin{{{kind}}}[t]",
        "\\centering",
        "\\small",
        f"\\caption{{{latex(table.caption)}}}",
        f"\\label{{tab:{table.name}}}",
    ]
    notes = [f"\\par\\footnotesize {latex(note)}" for note in table.notes]
    return "\n".join([*above, *body, *notes, f"\\end{{{kind}}}"]) + "\n"


def _latex_head(table: ResultTable) -> list[str]:
    """Return one line of headings, or two with a rule if columns have two names."""
    heads = [latex(head) for head in table.heads]
    if all(len(column) == 1 for column in table.columns):
        return [_ampersands([*heads, *(latex(column[0]) for column in table.columns)])]
    spans = _spans(table.columns)
    first = [f"\\multicolumn{{{length}}}{{c}}{{{latex(name)}}}" for name, _, length in spans]
    begin = len(heads) + 1
    rules = " ".join(f"\\cmidrule(lr){{{begin + start}-{begin + start + length - 1}}}" for _, start, length in spans)
    second = [*heads, *(latex(" ".join(column[1:])) for column in table.columns)]
    return [_ampersands([*[""] * len(heads), *first]), rules, _ampersands(second)]


def _spans(columns: Sequence[ColumnName]) -> list[tuple[str, int, int]]:
    """Return (name, first column, count) of adjacent columns with the same first name."""
    spans: list[tuple[str, int, int]] = []
    for number, column in enumerate(columns):
        if spans and spans[-1][0] == column[0]:
            name, start, length = spans.pop()
            spans.append((name, start, length + 1))
        else:
            spans.append((column[0], number, 1))
    return spans


def _latex_block(block: TableBlock, width: int, decimals: int) -> list[str]:
    title = [f"\\multicolumn{{{width}}}{{c}}{{{latex(block.title)}}} \\\\", "\\midrule"] if block.title else []
    rows = [
        _ampersands([*(latex(name) for name in row), *(_latex_cell(entry, decimals) for entry in entries)])
        for row, entries in block.rows
    ]
    return [*title, *rows]


def _latex_cell(entry: TableEntry | None, decimals: int) -> str:
    if entry is None:
        return ""
    wrap = {"best": "\\textbf{%s}", "second": "\\underline{%s}", "": "%s"}[entry.mark]
    text = wrap % latex(our_number(entry, decimals))
    return f"\\shortstack{{{text}\\\\{{\\scriptsize {latex(paper_number(entry, decimals))}}}}}" if entry.paper else text


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def latex(text: str) -> str:
    """Escape all characters that are special in LaTeX."""
    return re.sub("|".join(map(re.escape, LATEX)), lambda match: LATEX[match[0]], text)


def to_csv(table: ResultTable) -> str:
    """Return one line for each number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = ("mean", "std", "seeds", "mark", "gain", "paper", "paper_gain", "difference", "doubt")
    writer.writerow(["table", "block", *table.heads, "column", *numbers, "runs"])
    for block in table.blocks:
        for row, entries in block.rows:
            for column, entry in zip(table.columns, entries, strict=True):
                if entry:
                    writer.writerow([table.name, block.title, *row, " ".join(column), *_numbers(entry)])
    return file.getvalue()


def _numbers(entry: TableEntry) -> list[str | int]:
    sample, paper = entry.sample, entry.paper
    return [
        _plain(sample.mean),
        _plain(sample.std),
        len(sample.values),
        entry.mark,
        _plain(entry.gain),
        _plain(paper.value if paper else None),
        _plain(paper.gain if paper else None),
        _plain(entry.difference),
        paper.doubt if paper else "",
        entry.runs,
    ]


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
