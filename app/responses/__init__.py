"""POST /v1/responses: items in, items and events out, over the same chats that the other APIs are answered with."""
