"""The HTTP application over the fake engine, with a tokeniser and a ChatML template but without any process."""

from __future__ import annotations

from typing import Any

from attrs import define
from quart_trio import QuartTrio

from app.factory import create_app
from app.limits import Limits
from app.metrics import Metrics
from app.model_card import GenerationConfig, ModelCard
from app.render import ChatTemplate
from app.services import Services
from app.tokenizer import Tokenizer
from tests.helpers.dummy_checkpoint import CHAT_TEMPLATE, IM_END, dummy_tokenizer
from tests.helpers.fake_engine import FakeEngine

MODEL = "owner/dummy"


@define(eq=False)
class AppUnderTest:
    app: QuartTrio
    engine: FakeEngine
    services: Services

    async def post(self, path: str, **body: Any) -> Any:
        return await self.app.test_client().post(path, json=body)

    async def chat(self, content: Any = "Hi", **fields: Any) -> Any:
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        return await self.post("/v1/chat/completions", messages=messages, **fields)

    async def complete(self, prompt: Any = "The sky is", **fields: Any) -> Any:
        return await self.post("/v1/completions", prompt=prompt, **fields)


def make_tokenizer() -> Tokenizer:
    return Tokenizer(dummy_tokenizer(), dummy_tokenizer())


def make_app(
    *,
    template: str | None = CHAT_TEMPLATE,
    generation_config: GenerationConfig | None = None,
    limits: Limits | None = None,
    api_keys: tuple[str, ...] = (),
    **engine: Any,
) -> AppUnderTest:
    tokenizer = make_tokenizer()
    fake = FakeEngine(tokenizer, **engine)
    eos = tokenizer.token_id(IM_END)
    assert eos is not None
    services = Services(
        engine=fake,
        tokenizer=tokenizer,
        template=None if template is None else ChatTemplate(template),
        model=ModelCard((MODEL, "alias"), 1_700_000_000, (eos,), generation_config or GenerationConfig()),
        metrics=Metrics(fake, MODEL),
        limits=limits or Limits(),
        api_keys=api_keys,
        version="1.2.3",
        clock=lambda: 1_800_000_000.0,
        seed=lambda: 42,
    )
    return AppUnderTest(create_app(services), fake, services)
