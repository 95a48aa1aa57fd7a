"""Every operation of the HTTP API as data: what app/openapi.py describes, and a test compares with the registered
routes. The routes themselves are in app/routes; what is added there is added here.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from attrs import frozen

from app.auth import PUBLIC_PATHS
from app.header_fields import PRIORITY_HEADER
from app.house import House
from app.messages_error import is_messages_path
from app.priority import MAX_PRIORITY, MIN_PRIORITY
from app.responses.listed_items import DEFAULT_LIMIT, MAX_LIMIT
from app.schemas.admin import (
    AbortAnswer,
    IsPausedAnswer,
    IsSleepingAnswer,
    ProfilesAnswer,
    ResetAnswer,
    RunStateAnswer,
)
from app.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from app.schemas.completions import Completion, CompletionRequest
from app.schemas.embeddings import EmbeddingList, EmbeddingRequest
from app.schemas.error import ErrorBody
from app.schemas.lora import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from app.schemas.message_events import EVENTS
from app.schemas.messages import CountTokensAnswer, CountTokensRequest, MessagesAnswer, MessagesRequest
from app.schemas.messages_error import MessagesErrorBody
from app.schemas.models import Model, ModelList
from app.schemas.ops import LoadAnswer, VersionAnswer
from app.schemas.response_events import EVENTS as RESPONSE_EVENTS
from app.schemas.responses import Response, ResponsesRequest
from app.schemas.stored_responses import DeletedResponse, ItemList
from app.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN_TEXT = "text/plain"
HTML = "text/html"

Struct = type[msgspec.Struct]

OF_A_BODY = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
OF_A_MODEL = (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
OF_ENGINES = (HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
OF_STORED = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
NO_RESPONSE = "No such response here: it was never stored, was deleted, or is too old."
OF_GENERATING = (*OF_A_BODY, *OF_A_MODEL, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.GATEWAY_TIMEOUT)


@frozen(kw_only=True)
class Query:
    """One parameter of a query string."""

    name: str
    schema: dict[str, object]
    description: str


@frozen(kw_only=True)
class Header:
    """One header of a request that changes what is done with it."""

    name: str
    schema: dict[str, object]
    description: str


@frozen(kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    """With its parameters in braces; each is a string."""
    name: str
    """Unique; what generated clients call it."""
    summary: str
    body: Struct | None = None
    answer: Struct | None = None
    """Of status 200, as JSON."""
    media_type: str | None = None
    """Of an answer that is no JSON; None with no `answer` either: there is no body."""
    streamed: Struct | None = None
    """What each event of a streamed answer holds."""
    events: tuple[Struct, ...] = ()
    """What the events of a streamed answer hold where each has a name, its `type`."""
    query: tuple[Query, ...] = ()
    headers: tuple[Header, ...] = ()
    errors: tuple[HTTPStatus, ...] = ()
    """Besides those that every route may give."""
    not_found: str = "No such model here."
    """What 404 says."""

    @property
    def is_public(self) -> bool:
        """Whether it needs no key though keys are set."""
        return self.path in PUBLIC_PATHS

    @property
    def is_of_anthropic(self) -> bool:
        """Whether refusals and keys are in Anthropic's form."""
        return is_messages_path(self.path)

    @property
    def refusal(self) -> Struct:
        return MessagesErrorBody if self.is_of_anthropic else ErrorBody


MODE = Query(
    name="mode",
    schema={"enum": ["abort", "wait", "keep"], "default": "abort"},
    description="Whether requests end, are finished first if they have begun, or stop where they are and go on later.",
)

PRIORITY = Header(
    name=PRIORITY_HEADER,
    schema={"type": "integer", "minimum": MIN_PRIORITY, "maximum": MAX_PRIORITY},
    description="The request's priority, before the body's own: lower is served earlier, where the server goes by it.",
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="Answer a conversation.",
        body=ChatRequest,
        answer=ChatCompletion,
        streamed=ChatChunk,
        headers=(PRIORITY,),
        errors=OF_GENERATING,
    ),
    Operation(
        method="post",
        path="/v1/responses",
        name="createResponse",
        summary="Answer a conversation of items: in one piece, as events, or in the background.",
        body=ResponsesRequest,
        answer=Response,
        events=RESPONSE_EVENTS,
        headers=(PRIORITY,),
        errors=OF_GENERATING,
        not_found="No such model here, or no such previous response.",
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}",
        name="retrieveResponse",
        summary="A stored response as it is now, or the events of one in the background.",
        answer=Response,
        events=RESPONSE_EVENTS,
        query=(
            Query(
                name="stream",
                schema={"type": "boolean", "default": False},
                description="Its events until it ends; only of one that was made with background=true.",
            ),
            Query(
                name="starting_after",
                schema={"type": "integer", "minimum": 0},
                description="The sequence_number after which events are told; without it, all.",
            ),
            Query(name="include_obfuscation", schema={"type": "boolean"}, description="Passed over: there is none."),
        ),
        errors=OF_STORED,
        not_found=NO_RESPONSE,
    ),
    Operation(
        method="delete",
        path="/v1/responses/{response_id}",
        name="deleteResponse",
        summary="Forget a stored response; one that is under way in the background is cancelled.",
        answer=DeletedResponse,
        errors=OF_STORED,
        not_found=NO_RESPONSE,
    ),
    Operation(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        name="cancelResponse",
        summary="End a response in the background. One that has ended stays as it is.",
        answer=Response,
        errors=OF_STORED,
        not_found=NO_RESPONSE,
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        name="listInputItems",
        summary="What a stored response was an answer to, with what came before it.",
        answer=ItemList,
        query=(
            Query(
                name="limit",
                schema={"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
                description="Items in the page.",
            ),
            Query(
                name="order",
                schema={"enum": ["asc", "desc"], "default": "desc"},
                description="asc has the oldest first.",
            ),
            Query(name="after", schema={"type": "string"}, description="The id of the item that the page follows."),
        ),
        errors=OF_STORED,
        not_found=NO_RESPONSE,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        name="createCompletion",
        summary="Go on with each prompt.",
        body=CompletionRequest,
        answer=Completion,
        streamed=Completion,
        headers=(PRIORITY,),
        errors=OF_GENERATING,
    ),
    Operation(
        method="post",
        path="/v1/messages",
        name="createMessage",
        summary="Answer a conversation, in Anthropic's form.",
        body=MessagesRequest,
        answer=MessagesAnswer,
        events=EVENTS,
        headers=(PRIORITY,),
        errors=OF_GENERATING,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        name="countMessageTokens",
        summary="How many tokens such a conversation's prompt has.",
        body=CountTokensRequest,
        answer=CountTokensAnswer,
        errors=(*OF_A_BODY, *OF_A_MODEL),
    ),
    Operation(
        method="post",
        path="/v1/embeddings",
        name="createEmbedding",
        summary="A vector for each input, or for one conversation: exactly one of `input` and `messages`.",
        body=EmbeddingRequest,
        answer=EmbeddingList,
        headers=(PRIORITY,),
        errors=OF_GENERATING,
    ),
    Operation(method="get", path="/v1/models", name="listModels", summary="The served names.", answer=ModelList),
    Operation(
        method="get",
        path="/v1/models/{name}",
        name="retrieveModel",
        summary="One served name; names may have slashes.",
        answer=Model,
        errors=(HTTPStatus.NOT_FOUND,),
    ),
    Operation(
        method="post",
        path="/v1/load_lora_adapter",
        name="loadLoraAdapter",
        summary="Serve an adapter as a model; only with --enable-lora and --allow-runtime-lora-updating.",
        body=LoadLoraAdapterRequest,
        media_type=PLAIN_TEXT,
        errors=(*OF_A_BODY, HTTPStatus.NOT_FOUND, *OF_ENGINES),
    ),
    Operation(
        method="post",
        path="/v1/unload_lora_adapter",
        name="unloadLoraAdapter",
        summary="Serve an adapter no more; what runs with it is finished.",
        body=UnloadLoraAdapterRequest,
        media_type=PLAIN_TEXT,
        errors=(*OF_A_BODY, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
    Operation(
        method="post",
        path="/tokenize",
        name="tokenize",
        summary="The token ids of a prompt or of a conversation: exactly one of `prompt` and `messages`.",
        body=TokenizeRequest,
        answer=TokenizeAnswer,
        errors=(*OF_A_BODY, *OF_A_MODEL),
    ),
    Operation(
        method="post",
        path="/detokenize",
        name="detokenize",
        summary="The text of token ids.",
        body=DetokenizeRequest,
        answer=DetokenizeAnswer,
        errors=(*OF_A_BODY, *OF_A_MODEL),
    ),
    Operation(
        method="get",
        path="/health",
        name="health",
        summary="200 as long as the service can still become or be ready.",
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(
        method="get",
        path="/ready",
        name="ready",
        summary="200 while requests are taken.",
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(
        method="get",
        path="/ping",
        name="ping",
        summary="As /health.",
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(
        method="post",
        path="/ping",
        name="postPing",
        summary="As /health.",
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Operation(method="get", path="/version", name="version", summary="The server's version.", answer=VersionAnswer),
    Operation(
        method="get",
        path="/house",
        name="house",
        summary="The actors, what they say to each other, and what engines and requests count: what the console draws.",
        answer=House,
    ),
    Operation(method="get", path="/load", name="load", summary="How busy the server is.", answer=LoadAnswer),
    Operation(
        method="get",
        path="/metrics",
        name="metrics",
        summary="Gauges and counters for Prometheus.",
        media_type=PLAIN_TEXT,
    ),
    Operation(
        method="get", path="/openapi.json", name="openapi", summary="This document, OpenAPI 3.1.", media_type=JSON
    ),
    Operation(method="get", path="/docs", name="docs", summary="This document as a page.", media_type=HTML),
    Operation(
        method="post",
        path="/start_profile",
        name="startProfile",
        summary="Have each engine record what it does, to a file on its machine in Chrome's trace format.",
        answer=ProfilesAnswer,
        errors=OF_ENGINES,
    ),
    Operation(
        method="post",
        path="/stop_profile",
        name="stopProfile",
        summary="Have the profiles written.",
        answer=ProfilesAnswer,
        errors=OF_ENGINES,
    ),
    Operation(
        method="post",
        path="/sleep",
        name="sleep",
        summary="Compute nothing, and give memory back. Requests that come meanwhile wait.",
        query=(
            Query(
                name="level",
                schema={"enum": ["0", "1", "2"], "default": "1"},
                description="0 gives nothing back, 1 the KV cache (and on a GPU the weights), 2 the weights too.",
            ),
            MODE,
        ),
        answer=RunStateAnswer,
        errors=(HTTPStatus.BAD_REQUEST, *OF_ENGINES),
    ),
    Operation(
        method="post",
        path="/wake_up",
        name="wakeUp",
        summary="Take memory back, and compute again once nothing sleeps.",
        query=(
            Query(
                name="tags",
                schema={"type": "array", "items": {"enum": ["weights", "kv_cache", "scheduling"]}},
                description="What is woken; without any, everything.",
            ),
        ),
        answer=RunStateAnswer,
        errors=(HTTPStatus.BAD_REQUEST, *OF_ENGINES),
    ),
    Operation(
        method="get",
        path="/is_sleeping",
        name="isSleeping",
        summary="Whether an engine sleeps.",
        answer=IsSleepingAnswer,
        errors=OF_ENGINES,
    ),
    Operation(
        method="post",
        path="/reset_prefix_cache",
        name="resetPrefixCache",
        summary="Forget what was computed for the beginnings of prompts.",
        query=(
            Query(
                name="reset_running_requests",
                schema={"type": "boolean", "default": False},
                description="Compute those that run again; while any of them runs, there is no reset without this.",
            ),
            Query(
                name="reset_external",
                schema={"type": "boolean", "default": False},
                description="Forget what KV connectors have too, in memory and on disks.",
            ),
        ),
        answer=ResetAnswer,
        errors=(HTTPStatus.BAD_REQUEST, *OF_ENGINES),
    ),
    Operation(
        method="post",
        path="/pause",
        name="pause",
        summary="Compute nothing. Requests that come meanwhile wait.",
        query=(
            MODE,
            Query(
                name="clear_cache",
                schema={"type": "boolean", "default": True},
                description="Reset the prefix cache: what is kept is computed again afterwards.",
            ),
        ),
        answer=RunStateAnswer,
        errors=(HTTPStatus.BAD_REQUEST, *OF_ENGINES),
    ),
    Operation(
        method="post",
        path="/resume",
        name="resume",
        summary="The end of a pause.",
        answer=RunStateAnswer,
        errors=OF_ENGINES,
    ),
    Operation(
        method="get",
        path="/is_paused",
        name="isPaused",
        summary="Whether an engine is paused.",
        answer=IsPausedAnswer,
        errors=OF_ENGINES,
    ),
    Operation(
        method="post",
        path="/abort_requests",
        name="abortRequests",
        summary="End all requests. (With a body that lists request_ids it is refused.)",
        answer=AbortAnswer,
        errors=(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED, *OF_ENGINES),
    ),
)
