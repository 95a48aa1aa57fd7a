"""Ids of responses and items: a prefix that says what it is, and 128 random bits."""

from __future__ import annotations

import secrets

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "mcp_list_tools": "mcpl_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
}
ITEM_TYPES = tuple(_PREFIXES)
"""All that a conversation can have."""


def item_id(kind: str) -> str:
    """`kind` is the item's type."""
    return _PREFIXES[kind] + secrets.token_hex(16)
