"""The console's files, which app/console_files.py reads once and app/routes/console.py serves. Nothing here is Python.

index.html is the page; main.js starts it; requests.js has the key, poll.js the readings of /house, frame.js shows how
the server is; house.js has the actors, charts.js the figures; chat.js is the playground. There is no build step:
browsers get these files as they are. vendor/ has uPlot and its licence.
"""
