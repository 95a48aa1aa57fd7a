// Where the actors' boxes and the links between them are drawn. Pure: lengths are CSS pixels, so that text keeps its size
// on every screen. Wide: a request's way from left to right, app, engines, output handlers, and back along the top.
// Narrow: the same from top to bottom.

const NARROW = 860;
const EDGE = 16;
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
  const kinds = (/** @type {string[]} */ ...names) => house.actors.filter((actor) => names.includes(actor.kind));
  const others = house.actors.filter((/** @type {any} */ actor) => !(actor.kind in BOX));
  const rows = {
    left: [...kinds("api"), ...kinds("app"), ...kinds("weights")],
    middle: kinds("engine").flatMap((engine) => [engine, ...partsOf(engine, house)]),
    right: [...kinds("output"), ...kinds("standby"), ...others],
  };
  return width < NARROW ? narrow(house, rows, width) : wide(house, rows, width);
}

/** Its ranks and its connector. @param {any} engine @param {any} house */
const partsOf = (engine, house) =>
  house.actors.filter((one) => one !== engine && one.engine_index !== null && one.engine_index === engine.engine_index);

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
  const [upper, lower] = from.y < to.y ? [from, to] : [to, from];
  if (lower.y - upper.y - upper.height <= LINKED_GAP) return straight(from, to);
  const isDown = upper === from;
  const [side, y1, y2, turn] = [from.x - 9, from.y + FIRST_LINE, to.y + FIRST_LINE, isDown ? 6 : -6];
  const path = `M${from.x} ${y1}H${side + 6}Q${side} ${y1} ${side} ${y1 + turn}V${y2 - turn}Q${side} ${y2} ${side + 6} ${y2}H${to.x - 6}`;
  return { path, label: null };
}

/** Down on the left, up on the right, so that there is room for both names.
 * @param {Box} from @param {Box} to */
function straight(from, to) {
  const isDown = from.y < to.y;
  const x = from.x + from.width * (isDown ? 0.14 : 0.62);
  const [start, end] = isDown ? [from.y + from.height, to.y - 6] : [from.y, to.y + to.height + 6];
  const middle = (Math.min(from.y + from.height, to.y + to.height) + Math.max(from.y, to.y)) / 2;
  return { path: `M${x} ${start}V${end}`, label: { x: x + 9, y: middle + 4, anchor: "start" } };
}

function narrow(house, rows, width) {
  const boxes = new Map();
  const gutter = 22;
  const ring = [...rows.left.filter((one) => one.kind !== "weights"), ...rows.middle, ...rows.right.filter((one) => one.kind === "output")];
  const rest = [...rows.left, ...rows.right].filter((one) => !ring.includes(one));
  const areLinked = (/** @type {string} */ one, /** @type {string} */ other) =>
    house.links.some(({ from, to }) => (from === one && to === other) || (from === other && to === one));
  let y = EDGE;
  [...ring, ...rest].forEach((actor, i, all) => {
    const isLast = actor === rest[0]; // where the way back to the app is named
    if (i) y += isLast || areLinked(actor.name, all[i - 1].name) ? LINKED_GAP : GAP;
    const height = BOX[actor.kind] ?? 78;
    boxes.set(actor.name, { x: gutter, y, width: width - 2 * gutter, height });
    y += height;
  });
  const lastOutput = ring.at(-1)?.name;
  const labelled = new Set();
  const ways = house.links.flatMap((link) => {
    const [from, to] = [boxes.get(link.from), boxes.get(link.to)];
    if (!from || !to) return [];
    const isNear = Math.max(from.y, to.y) - Math.min(from.y + from.height, to.y + to.height) <= LINKED_GAP;
    const way = isNear ? straight(from, to) : { path: around(from, to, link, width), label: null };
    if (link.from === lastOutput && !isNear) way.label = { x: from.x, y: from.y + from.height + 20, anchor: "start" };
    const label = labelled.has(link.sends) ? null : way.label;
    if (label) labelled.add(link.sends);
    return [{ ...link, id: `${link.from} ${link.to} ${link.sends}`, path: way.path, label }];
  });
  return { boxes, ways, height: y + (rest.length ? EDGE : LINKED_GAP) };
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
