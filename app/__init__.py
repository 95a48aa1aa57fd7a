"""What a person sees: the HTTP API, its validation, rendering and streams.

`create_app` is here so that `hypercorn --worker-class trio 'app:create_app()'` works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quart_trio import QuartTrio


def create_app() -> QuartTrio:
    """The application configured from the environment and files (see app/settings.py), for a hypercorn command line."""
    from app.hypercorn_command import create_app_from_environment

    return create_app_from_environment()
