"""The bodies of the HTTP API as msgspec structs: requests are decoded into them, answers are encoded from them."""
