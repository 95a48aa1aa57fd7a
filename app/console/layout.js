// Where the actors' boxes and the links between them are drawn. Pure: lengths are CSS pixels, so that text keeps its size
// on every screen. Wide: a request's way from left to right, app, engines, output handlers, and back along the top.
// Narrow: the same from top to bottom.

const NARROW = 860;
const EDGE = 14;
const BOX = { app: 96, api: 96, engine: 126, rank: 78, output: 96, weights: 78, standby: 78, kv: 78 };
const GAP = 26;
const LINKED_GAP = 44; // between boxes that are linked, one below the other
const FIRST_LINE = 36; // below a box's top, where its main links end
const SECOND_LINE = 88;

/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {{id: string, path: string, label: {x: number, y: number, anchor: string} | null, sends: string, socket: string, from: string, to: string}} Way */

/** @param {any} house @param {number} width
 * @returns {{boxes: Map<string, Box>, ways: Way[], height: number}} */
export function layout(house, width) {
  const rows = { left: [], middle: [], right: [] };
  const kinds = (/** @type {string[]} */ ...names) => house.actors.filter((actor) => names.includes(actor.kind));
  const servers = kinds("api");
  const front = servers.length ? servers : kinds("app");
  rows.left = [...front, ...(servers.length ? kinds("app") : []), ...kinds("weights")];
  rows.middle = kinds("engine").flatMap((engine) => [
    engine,
    ...house.actors.filter((one) => one !== engine && one.engine_index === engine.engine_index && one.engine_index !== null),
  ]);
  rows.right = [...kinds("output"), ...kinds("standby"), ...house.actors.filter((one) => !(one.kind in BOX))];
  return width < NARROW ? narrow(house, rows, width) : wide(house, rows, width);
}

/** @param {any[]} actors @param {number} x @param {number} y @param {number} width @param {Map<string, Box>} boxes */
function stack(actors, x, y, width, boxes) {
  actors.forEach((actor, i) => {
    const isPart = actor.kind === "rank" || actor.kind === "kv";
    if (i) y += isPart ? LINKED_GAP : GAP;
    const height = BOX[actor.kind] ?? 78;
    boxes.set(actor.name, { x, y, width, height });
    y += height;
  });
  return y;
}

function wide(house, rows, width) {
  const boxes = new Map();
  const boxWidth = Math.min(276, Math.max(230, width * 0.21));
  const top = 72;
  const columns = [
    [rows.left, EDGE],
    [rows.middle, (width - boxWidth) / 2],
    [rows.right, width - EDGE - boxWidth],
  ];
  const height = Math.max(...columns.map(([actors, x]) => stack(actors, x, top, boxWidth, boxes))) + EDGE;
  const labelled = new Set();
  const ways = house.links.flatMap((link, i) => {
    const [from, to] = [boxes.get(link.from), boxes.get(link.to)];
    if (!from || !to) return [];
    const way = wayBetween(from, to, link, i);
    const kind = `${link.from.split("-")[0]} ${link.to.split("-")[0]} ${link.sends}`;
    const isFirst = !labelled.has(kind);
    labelled.add(kind);
    return [{ ...link, id: `${link.from} ${link.to} ${link.sends}`, path: way.path, label: isFirst ? way.label : null }];
  });
  return { boxes, ways, height };
}

/** @param {Box} from @param {Box} to @param {any} link @param {number} number */
function wayBetween(from, to, link, number) {
  if (link.sends === "RequestOutputs") return backAlongTheTop(from, to, number);
  if (Math.abs(from.x - to.x) < 1) return downOrUp(from, to, link);
  const line = link.socket === "shared memory" ? SECOND_LINE : FIRST_LINE;
  const [x1, x2] = [from.x + from.width, to.x - 6];
  const [y1, y2] = [from.y + FIRST_LINE, to.y + line];
  const bend = (x2 - x1) * 0.5;
  return {
    path: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
    label: { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 8, anchor: "middle" },
  };
}

/** @param {Box} from @param {Box} to @param {number} number */
function backAlongTheTop(from, to, number) {
  const y = 38 - Math.min(number % 4, 3) * 6;
  const [x1, x2] = [from.x + from.width / 2, to.x + to.width / 2];
  const r = 10;
  return {
    path: `M${x1} ${from.y}V${y + r}Q${x1} ${y} ${x1 - r} ${y}H${x2 + r}Q${x2} ${y} ${x2} ${y + r}V${to.y - 6}`,
    label: { x: (x1 + x2) / 2, y: y - 7, anchor: "middle" },
  };
}

/** Between boxes of one column: neighbours by a straight line, others around those between.
 * @param {Box} from @param {Box} to @param {any} link */
function downOrUp(from, to, link) {
  const isDown = to.y > from.y;
  const [upper, lower] = isDown ? [from, to] : [to, from];
  const x = from.x + (isDown ? from.width * 0.25 : from.width * 0.5);
  const isNear = lower.y - upper.y - upper.height <= LINKED_GAP;
  const [start, end] = isDown ? [from.y + from.height, to.y - 6] : [from.y, to.y + to.height + 6];
  const label = { x: x + 10, y: (upper.y + upper.height + lower.y) / 2 + (isDown ? -4 : 12), anchor: "start" };
  if (isNear) return { path: `M${x} ${start}V${end}`, label };
  const [side, ys, ye] = [from.x - 16, from.y + FIRST_LINE, to.y + FIRST_LINE];
  return { path: `M${from.x} ${ys}H${side + 6}Q${side} ${ys} ${side} ${ys + (isDown ? 6 : -6)}V${ye + (isDown ? -6 : 6)}Q${side} ${ye} ${side + 6} ${ye}H${to.x - 6}`, label: null };
}

function narrow(house, rows, width) {
  const boxes = new Map();
  const gutter = 22;
  const boxWidth = width - 2 * gutter;
  const ring = [...rows.left.filter((one) => one.kind !== "weights"), ...rows.middle, ...rows.right.filter((one) => one.kind === "output")];
  const rest = [...rows.left, ...rows.right].filter((one) => !ring.includes(one));
  let y = EDGE;
  for (const [i, actor] of [...ring, ...rest].entries()) {
    if (i) y += LINKED_GAP;
    const height = BOX[actor.kind] ?? 78;
    boxes.set(actor.name, { x: gutter, y, width: boxWidth, height });
    y += height;
  }
  const labelled = new Set();
  const ways = house.links.flatMap((link) => {
    const [from, to] = [boxes.get(link.from), boxes.get(link.to)];
    if (!from || !to) return [];
    const isNear = to.y > from.y && to.y - from.y - from.height <= LINKED_GAP;
    let label = isNear && !labelled.has(link.sends) ? { x: width / 2 + 12, y: to.y - LINKED_GAP / 2 - 1, anchor: "start" } : null;
    if (link.sends === "RequestOutputs" && !labelled.has(link.sends)) label = { x: from.x, y: from.y + from.height + 16, anchor: "start" };
    labelled.add(link.sends);
    const path = isNear ? `M${width / 2} ${from.y + from.height}V${to.y - 6}` : around(from, to, link, width);
    return [{ ...link, id: `${link.from} ${link.to} ${link.sends}`, path, label }];
  });
  return { boxes, ways, height: y + LINKED_GAP };
}

/** Along the left edge to an engine and back to the app, along the right edge from it.
 * @param {Box} from @param {Box} to @param {any} link @param {number} width */
function around(from, to, link, width) {
  const isRight = link.socket === "XPUB/SUB" || link.socket === "shared memory";
  const side = isRight ? width - 9 : link.sends === "RequestOutputs" ? 5 : 13;
  const [x1, x2] = isRight ? [from.x + from.width, to.x + to.width + 6] : [from.x, to.x - 6];
  const [y1, y2] = [from.y + FIRST_LINE + 8, to.y + FIRST_LINE - 8];
  return `M${x1} ${y1}H${side}V${y2}H${x2}`;
}
