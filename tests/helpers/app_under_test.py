"""The HTTP application over the fake engine, with a tokeniser and a ChatML template but without any process."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import tokenizers
import trio
from attrs import define
from quart_trio import QuartTrio
from werkzeug.datastructures import Headers

from app.adapter_paths import AdapterPolicy
from app.adapters import Adapter, Adapters
from app.dialects.dialect import Dialect
from app.factory import create_app
from app.kv_transfer import KvPolicy
from app.limits import Limits
from app.metrics import Metrics
from app.model_card import GenerationConfig, ModelCard
from app.peers import NoPeers, Peers
from app.render import ChatTemplate
from app.services import Services
from app.tokenizer import Tokenizer
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.dummy_checkpoint import CHAT_TEMPLATE, IM_END, dummy_tokenizer
from tests.helpers.fake_engine import FakeEngine

MODEL = "owner/dummy"


class Reply:
    """What came back. (Quart's own test client stops after ten pieces of a body that nobody reads meanwhile.)"""

    def __init__(self, exchange: Exchange) -> None:
        self.status_code = exchange.status
        self.headers = Headers([(name.decode(), value.decode()) for name, value in exchange.sent[0]["headers"]])
        self.data = exchange.data
        self.text = exchange.data.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@define(eq=False)
class AppUnderTest:
    app: QuartTrio
    engine: FakeEngine
    services: Services

    async def post(self, path: str, **body: Any) -> Reply:
        return await self.send("POST", path, json.dumps(body).encode())

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path, b"")

    async def send(self, method: str, path: str, body: bytes, **headers: str | None) -> Reply:
        """Header names are written with underscores; None leaves a header out."""
        sent = {"content_type": "application/json", **headers}
        lines = [(name.replace("_", "-").encode(), v.encode()) for name, v in sent.items() if v is not None]
        exchange = Exchange(http_scope(method, path, lines), body)
        with trio.fail_after(30):
            await exchange.run(self.app)
        return Reply(exchange)

    async def chat(self, content: Any = "Hi", **fields: Any) -> Reply:
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        return await self.post("/v1/chat/completions", messages=messages, **fields)

    async def complete(self, prompt: Any = "The sky is", **fields: Any) -> Reply:
        return await self.post("/v1/completions", prompt=prompt, **fields)


@functools.cache
def _trained() -> str:
    return str(dummy_tokenizer().to_str())


def make_tokenizer() -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(_trained()), tokenizers.Tokenizer.from_str(_trained()))


def make_app(
    *,
    template: str | None = CHAT_TEMPLATE,
    generation_config: GenerationConfig | None = None,
    limits: Limits | None = None,
    api_keys: tuple[str, ...] = (),
    adapters: Iterable[Adapter] = (),
    adapter_policy: AdapterPolicy | None = None,
    dialect: Dialect | None = None,
    peers: Peers | None = None,
    tokenizer: Tokenizer | None = None,
    kv_policy: KvPolicy | None = None,
    has_console: bool = True,
    **engine: Any,
) -> AppUnderTest:
    tokenizer = tokenizer or make_tokenizer()
    fake = FakeEngine(tokenizer, **engine)
    eos = tokenizer.token_id(IM_END)
    sampling = generation_config or GenerationConfig()
    card = ModelCard((MODEL, "alias"), 1_700_000_000, () if eos is None else (eos,), sampling, Adapters(adapters))
    services = Services(
        engine=fake,
        tokenizer=tokenizer,
        template=None if template is None else ChatTemplate(template),
        model=card,
        adapter_policy=adapter_policy or AdapterPolicy(),
        metrics=Metrics(fake, MODEL, has_peers=peers is not None),
        peers=peers or NoPeers(),
        dialect=dialect or Dialect(),
        limits=limits or Limits(),
        api_keys=api_keys,
        kv_policy=kv_policy or KvPolicy(),
        has_console=has_console,
        version="1.2.3",
        clock=lambda: 1_800_000_000.0,
        started_at=1_799_999_000.0,
        seed=lambda: 42,
    )
    return AppUnderTest(create_app(services), fake, services)
