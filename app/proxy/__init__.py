"""`trillm proxy`: one address in front of servers that compute prompts and servers that go on with them.

It is no part of a server and knows no model: it speaks HTTP to both sides. A request for an answer is sent to a prefill
server first, to compute its prompt and one token, and then, with what that has told of where the KV lies, to a decode
server, whose answer goes to the client byte by byte. That is vLLM's convention (kv_transfer_params), so vLLM's servers
do behind it, too.
"""
