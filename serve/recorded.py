"""Texts and table rows for models whose receipts record how those become tensors: the very ones that training saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import tables
from penstock.serve import rows
from penstock.serve.errors import RequestError
from penstock.serve.rows import Columns
from penstock.tabular import BadRow, TablePreprocess
from penstock.textual import BadText, TextPreprocess

Inputs = dict[str, NDArray[np.generic]]


def text_inputs(held: TextPreprocess, texts: Sequence[str], most: int) -> Inputs:
    """Texts, one row each.

    Raises:
        RequestError: there are more than `most`, or one is no text.
    """
    if len(texts) > most:
        raise rows.too_many("texts", most)
    try:
        return {**held.rows(texts)}
    except BadText as error:
        raise RequestError(f"texts[{error.index}] {error.why}") from None


def row_inputs(held: TablePreprocess, listed: Sequence[Any], most: int) -> Inputs:
    """Rows of JSON, each an object of the columns' values, or a list of them in the order of the columns.

    Raises:
        RequestError: there are more than `most`, or one lacks a column, has one that is unknown, or a value that is
            none of its column's.
    """
    if len(listed) > most:
        raise rows.too_many("rows", most)
    columns = columns_of(held)
    values = (rows.listed(columns, row, f"rows[{index}]") for index, row in enumerate(listed))
    records = [dict(zip(held.names, row, strict=True)) for row in values]
    try:
        return {**held.rows(records)}
    except BadRow as error:
        raise RequestError(f"rows[{error.index}].{error.column} {error.why}") from None


def columns_of(held: TablePreprocess) -> Columns:
    """What one row is."""
    return Columns(held.tensors(), held.names, len(held.names))


def csv_texts(held: TextPreprocess, data: bytes, names: Sequence[str], most: int) -> Inputs:
    """The texts in a CSV file with a header, in the first column of one of these names; other columns are passed over.

    Raises:
        RequestError, BadTable: naming the line, the value and the rule.
    """
    header, _, records = _sheet(data, most)
    name = next((name for name in names if name in header), None)
    if name is None:
        told = " or ".join(map(repr, dict.fromkeys(names)))
        raise RequestError(f"the table's header lacks {told}, the column of texts")
    place = header.index(name)
    return text_inputs(held, [record[place] for record in records], most)


def csv_rows(held: TablePreprocess, data: bytes, most: int) -> Inputs:
    """The rows of a CSV file, whose header names the columns, in any order; those that are not the model's are left.

    Raises:
        RequestError, BadTable: naming the line, the column, the value and the rule.
    """
    header, lines, records = _sheet(data, most)
    for name in held.names:
        if name not in header:
            raise RequestError(f"the table's header lacks {name[:40]!r}; a row is {columns_of(held)}")
    try:
        return {**held.rows([dict(zip(header, record, strict=True)) for record in records])}
    except BadRow as error:
        raise RequestError(f"line {lines[error.index]}, column {error.column} {error.why}") from None


def _sheet(data: bytes, most: int) -> tuple[list[str], list[int], list[list[str]]]:
    """The header of a CSV file, and its records with the lines that they end in."""
    header: list[str] | None = None
    lines: list[int] = []
    found: list[list[str]] = []
    for line, record in tables.records(data):
        if header is None:
            header = record
            twice = [name for name in header if header.count(name) > 1]
            if twice:
                raise RequestError(f"the table's header has {twice[0][:40]!r} twice")
            continue
        if len(record) != len(header):
            raise RequestError(f"line {line} of the table has {len(record)} values; its header has {len(header)}")
        if len(found) == most:
            raise rows.too_many("the table", most)
        lines.append(line)
        found.append(record)
    if header is None or not found:
        raise RequestError("the table has no row below a header that names its columns")
    return header, lines, found
