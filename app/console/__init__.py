"""The console's files, which app/console_files.py reads once and app/routes/console.py serves. Nothing here is Python.

index.html is the page; main.js has the key, the tabs and the readings of /house; house.js draws the actors, charts.js
the figures; chat.js is the playground. There is no build step: browsers get these files as they are. vendor/ has uPlot
and its licence.
"""
