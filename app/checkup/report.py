"""Findings as a table for people, and as JSON for programs. Used by app/commands/check.py; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import attrs
import msgspec

from app.checkup.finding import Finding, Mark

SIGNS = {Mark.OK: "✓", Mark.WARN: "!", Mark.FAIL: "✗"}
PLAIN_SIGNS = {Mark.OK: "ok  ", Mark.WARN: "warn", Mark.FAIL: "FAIL"}
COLOURS = {Mark.OK: "32", Mark.WARN: "33", Mark.FAIL: "31"}
NAME_WIDTH = 9


@attrs.frozen
class Look:
    """Of a table."""

    width: int = 80
    has_signs: bool = False
    """The terminal shows more than ASCII."""
    has_colours: bool = False


def table(findings: Iterable[Finding], look: Look) -> str:
    """A finding a line, as far as it fits; what to do about it follows in the same sentence."""
    return "\n".join(_row(finding, look) for finding in findings)


def _row(finding: Finding, look: Look) -> str:
    sign = (SIGNS if look.has_signs else PLAIN_SIGNS)[finding.mark]
    margin = len(sign) + NAME_WIDTH + 4
    arrow = "→" if look.has_signs else "->"
    text = f"{finding.text} {arrow} {finding.remedy}" if finding.remedy else finding.text
    if not look.has_signs:
        text = text.encode("ascii", "replace").decode()
    body = textwrap.fill(
        text,
        max(look.width, margin + 20),
        initial_indent=" " * margin,
        subsequent_indent=" " * margin,
        break_on_hyphens=False,
        break_long_words=False,
    )[margin:]
    shown = f"\x1b[{COLOURS[finding.mark]}m{sign}\x1b[0m" if look.has_colours else sign
    return f" {shown}  {finding.name:<{NAME_WIDTH}} {body}"


def verdict(findings: Sequence[Finding], command: str) -> str:
    """What it comes to, and what to do next: `command`, if nothing keeps a server from running."""
    failed = [finding.name for finding in findings if finding.mark is Mark.FAIL]
    warned = [finding.name for finding in findings if finding.mark is Mark.WARN]
    if failed:
        return f"A server would not run: see {', '.join(failed)}."
    if warned:
        return f"A server will run; see {', '.join(warned)}. Next: {command}"
    return f"All is well. Next: {command}"


def as_json(findings: Sequence[Finding]) -> str:
    """{"object": "check", "ok": …, "findings": [{"name", "mark", "text", "remedy"}]}"""
    rows = [attrs.asdict(finding) for finding in findings]
    ok = all(finding.mark is not Mark.FAIL for finding in findings)
    return msgspec.json.format(msgspec.json.encode({"object": "check", "ok": ok, "findings": rows})).decode()
