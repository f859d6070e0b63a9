"""The metrics of an evaluation as a table for the terminal."""

from __future__ import annotations

__all__ = ["table"]


def table(metrics: list[dict[str, float]], word: str) -> str:
    """Return a row for each metric and a column for each loader; `word` names the stage."""
    if len(metrics) > 1:  # the column names the loader
        ends = [f"/dataloader_idx_{i}" for i in range(len(metrics))]
        pairs = zip(metrics, ends, strict=True)
        metrics = [{name.removesuffix(end): value for name, value in values.items()} for values, end in pairs]
    names = sorted({name for values in metrics for name in values})
    head = [f"{word} metric", *(["value"] if len(metrics) == 1 else [f"loader {i}" for i in range(len(metrics))])]
    rows = [[name, *(f"{values[name]:.6g}" if name in values else "" for values in metrics)] for name in names]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    line = "─" * (sum(widths) + 3 * len(widths) - 1)

    def text(row: list[str]) -> str:
        first, *rest = (
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return " " + "   ".join([first, *rest])

    return "\n".join([line, text(head), line, *map(text, rows), line])
