"""What the console's modules make of what they are given, each by itself in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

pytestmark = pytest.mark.process

Run = Callable[..., Any]


QUANTILES = """async () => {
    const { quantile } = await load("figures.js");
    const before = { bounds: [0.1, 0.2, 0.4], counts: [5, 0, 0, 0], sum: 0 };
    const of = (counts, share) => quantile(before, { ...before, counts }, share);
    const asked = [[[5, 0, 0, 0], 0.5], [[5, 10, 0, 0], 0.5], [[5, 10, 10, 0], 0.95],
        [[10, 0, 0, 0], 0.25], [[5, 0, 0, 6], 0.5], [[9, 0, 0, 0], 0.5]];
    return asked.map(([counts, share]) => of(counts, share));
}"""


def test_quantiles_are_those_of_what_came_since_and_lie_within_buckets(run: Run):
    found = run(QUANTILES)
    assert found[0] is found[-1] is None  # of four values nobody can tell
    assert found[1:-1] == pytest.approx([0.15, 0.38, 0.025, 0.4])


STATES = """async (actors) => {
    const { phaseSince, stateOf } = await load("actors.js");
    const usual = { ready: false, needed: true, heartbeat_age: 0, restarts: 0, last_end: null, phase_seconds: 3 };
    const whole = actors.map((actor) => ({ ...usual, ...actor }));
    return [whole.map((actor) => stateOf(actor).word), whole.slice(-3).map(phaseSince)];
}"""


def test_how_far_an_actor_is_is_told_of_each_phase_that_knows_it(run: Run):
    told = {
        "starting 45 %": {"phase": "load", "progress": 0.45},
        "starting 7 %": {"phase": "warm up", "progress": 0.07},
        "starting": {"phase": "import", "progress": 0},
        "restarting 99 %": {"phase": "compile kernels", "progress": 0.999, "restarts": 1},
        "restarting": {"phase": "down", "progress": 0.5, "restarts": 1},
        "comes later": {"phase": "down", "kind": "standby", "needed": False},
        "not needed now": {"phase": "down", "kind": "kv", "needed": False, "restarts": 1},
        "silent for 9 s": {"phase": "import", "ready": True, "heartbeat_age": 9},
        "ready": {"phase": "idle", "progress": 0.5, "ready": True},
    }
    phases = ["not running for 3 s", "just started", "idle for 3 s"]
    assert run(STATES, list(told.values())) == [list(told), phases]


LAYOUTS = """
async () => {
  const { layout } = await load("layout.js");
  const actor = (name, kind, engine_index = null) => ({ name, kind, engine_index });
  const wrong = [];
  for (const engines of [1, 2, 8]) {
    for (const servers of [0, 3]) {
      const actors = [actor("app", "app"), actor("weights-0", "weights"), actor("standby-0", "standby")];
      const links = [];
      for (let i = 0; i < servers; i++) actors.push(actor(`api-${i}`, "api"));
      for (let i = 0; i < (servers || 1); i++) actors.push(actor(`output-${i}`, "output"));
      for (let i = 0; i < engines; i++) {
        actors.push(actor(`engine-${i}`, "engine", i), actor(`rank-${i}.1`, "rank", i), actor(`kv-${i}`, "kv", i));
        const [engine, kv] = [`engine-${i}`, `kv-${i}`];
        const pairs = [["app", engine], [engine, "output-0"], [engine, kv], [kv, engine]];
        for (const [from, to] of pairs) links.push({ from, to, sends: `${from} ${to}`, socket: "PUSH/PULL" });
      }
      links.push({ from: "output-0", to: "app", sends: "RequestOutputs", socket: "PUSH/PULL" });
      for (const width of [300, 420, 859, 860, 1100, 1380]) {
        const { boxes, ways, height } = layout({ actors, links }, width);
        const placed = [...boxes.values()];
        const isOut = placed.some((b) => b.x < 0 || b.y < 0 || b.x + b.width > width || b.y + b.height > height);
        const overlap = placed.some((a, i) => placed.some((b, j) => i < j && a.x < b.x + b.width && b.x < a.x + a.width
          && a.y < b.y + b.height && b.y < a.y + a.height));
        const isWhole = placed.length === actors.length && ways.length === links.length;
        const isDrawn = ways.every((way) => !way.path.includes("NaN"));
        const isRight = !isOut && !overlap && isWhole && isDrawn;
        if (!isRight) wrong.push([engines, servers, width, isOut, overlap, isWhole, isDrawn]);
      }
    }
  }
  return wrong;
}
"""


def test_every_actor_has_a_place_of_its_own_in_every_house_on_every_screen(run: Run):
    assert run(LAYOUTS) == []


EVENTS = """async ([bytes, size]) => {
    const { events } = await load("chat_sse.js");
    const cut = (at) => new Uint8Array(bytes.slice(at, at + size));
    const body = new ReadableStream({ start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(cut(at));
        controller.close();
    }});
    const found = [];
    for await (const event of events(body, true)) found.push(event);
    return found;
}"""


def test_events_are_read_wherever_they_are_cut(run: Run):
    stream = '\ufeffdata: {"a": "Grüße, 船 🚢"}\n\n: keep-alive\r\n\r\nevent: x\rdata: {"a":\rdata: 2}\r\r'
    stream += "data: [DONE]\n\ndata: 3\n\n"
    for size in (1, 2, 3, 7, 1000):
        assert run(EVENTS, [list(stream.encode()), size]) == [{"a": "Grüße, 船 🚢"}, {"a": 2}], size


MARKDOWN = """# Title **x**
Text *it* and `code <b>` and __bold__ snake_case_name
second line
- a
- b
  - nested

  more of b
1. one
2) two
> quote
> - x

```python
def f():

    return "``"
```
| a | b |
|---|:-:|
| 1 | `2` |

[good](https://example.org/) [bad](javascript:alert(1)) [worse](data:text/html,x) <img src=x onerror=alert(1)>
<script>alert(1)</script> **not closed
~~~
open"""

LONG = f"""{" ".join(["**a** _b_ `c`"] * 400)}
{"| a row " * 3}

- {"item " * 600}
  - {"inner " * 600}
- next

{"> quoted " * 400}
"""
"""Blocks that are not made again for each of their tokens."""

MADE = """async ([text, size]) => {
    const { Markdown } = await load("chat_markdown.js");
    const root = document.createElement("div");
    const markdown = new Markdown(root);
    for (let at = 0; at < text.length; at += size) markdown.append(text.slice(at, at + size));
    markdown.end();
    return root.innerHTML;
}"""


def test_markdown_is_the_same_however_it_comes_and_never_becomes_html(run: Run):
    whole = run(MADE, [MARKDOWN, 10_000])
    for size in (1, 2, 3, 5, 11, 40):
        assert run(MADE, [MARKDOWN, size]) == whole, size
    for element in ("<h3>Title <strong>x", "<em>it</em>", "<code>code &lt;b&gt;</code>", "<strong>bold", "<table>"):
        assert element in whole
    assert re.search(r"<ol start=.1.><li>one</li><li>two</li></ol>", whole)
    assert 'def f():\n\n    return "``"</code>' in whole
    assert whole.count("<a ") == 1
    assert "&lt;img src=x onerror" in whole
    assert "<script" not in whole
    assert "<img" not in whole


def test_long_blocks_are_the_same_too_however_they_come(run: Run):
    whole = run(MADE, [LONG, 100_000])
    assert whole.count("<strong>") == 400
    for size in (3, 37, 2500):
        assert run(MADE, [LONG, size]) == whole, size


COUNT = """async (text) => {
    const { Markdown } = await load("chat_markdown.js");
    const root = document.createElement("div");
    const markdown = new Markdown(root);
    const bare = (text) => text.replace(/[\\s*]/g, "");
    const create = document.createElement;
    let made = 0;
    let isBehind = false;
    document.createElement = function (...given) {
        made += 1;
        return create.apply(this, given);
    };
    try {
        for (let at = 0; at < text.length; at += 5) {
            markdown.append(text.slice(at, at + 5));
            isBehind ||= bare(root.textContent) !== bare(text.slice(0, at + 5));
        }
    } finally {
        document.createElement = create;
    }
    return [made, isBehind];
}"""


def test_a_paragraph_without_an_end_is_not_made_again_for_each_token_and_is_shown_all_the_time(run: Run):
    made, is_behind = run(COUNT, "**ab** cd " * 1000)
    assert made < 100_000  # of 1000 marks; made again each time, they would be a million
    assert not is_behind


SLOW_LINES = [f"# a{' ' * 60_000}b", f"a|b\n-{' ' * 60_000}x", f"` {'a' * 60_000}`", f"x{' ' * 60_000}y"]
SLOW_LINES += [f"```{' ' * 60_000}`\n", f"{'~' * 60_000}`\n", f"{'~' * 60_000} ", f"# {' ' * 60_000}\u2028\n"]
SLOW_LINES += [f"-{' ' * 60_000}\u2028\n", "".join(f"{'`' * at}a " for at in range(1, 400)), "- a\n" * 30_000]
NUMEROUS = r"\*" * 45_000 + "*a* " * 2_000


def test_no_line_makes_a_pattern_look_at_it_from_each_of_its_characters(run: Run):
    took = """async (text) => {
        const { Markdown } = await load("chat_markdown.js");
        const began = performance.now();
        const markdown = new Markdown(document.createElement("div"));
        markdown.append(text);
        markdown.end();
        return performance.now() - began;
    }"""
    for line in [*SLOW_LINES, NUMEROUS, NUMEROUS * 5]:
        assert run(took, line) < 4000, line[:10]  # it is a few; by all pairs of characters, many seconds


HAPPENINGS = """async (readings) => {
    const { Happenings } = await load("actors.js");
    const usual = { name: "output-0", kind: "output", epoch: 4, pid: 9, ready: true, last_end: null };
    const counts = { restarts: 0, deaths: 0 };
    const house = { now: 1, started_at: 1, alive: true, run_state: {}, requests: { replayed: 0, condemned: 0 } };
    const happenings = new Happenings();
    const told = (actor) => happenings.take({ ...house, actors: [{ ...usual, ...counts, ...actor }] });
    return readings.map((actor) => told(actor).map(({ text }) => text));
}"""


def test_a_death_is_told_once_though_api_servers_hear_of_it_at_different_times(run: Run):
    counted = {"deaths": 1}
    gone = {"pid": None, "ready": False}
    coming = {"epoch": 6, "ready": False, "restarts": 1, "deaths": 1, "last_end": "killed by SIGKILL"}
    back = coming | {"ready": True}
    ended, ready = "output-0 ended: killed by SIGKILL", "output-0 is ready again"
    assert run(HAPPENINGS, [{}, counted, coming, counted, back, {}, back]) == [[], [], [ended], [], [ready], [], []]
    assert run(HAPPENINGS, [{}, gone, {}, gone, back]) == [[], ["output-0 ended"], [], [], [ready]]
    assert run(HAPPENINGS, [{}, back]) == [[], [ended, ready]]
    starting = {"epoch": 0, "pid": None, "ready": False}
    assert run(HAPPENINGS, [starting, {"ready": False}, {}]) == [[], [], ["output-0 is ready"]]
    assert run(HAPPENINGS, [back, back | {"epoch": 8, "restarts": 2}])[1] == [ended, ready]
