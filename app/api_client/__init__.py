"""A small client of the OpenAI HTTP API over trio, for the commands that ask a server: chat, bench, status."""
