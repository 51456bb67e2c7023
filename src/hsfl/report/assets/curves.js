// Learning over simulated time and over rounds: a line for each label, its interval, values on hover.

const DASHES = ["1.5 2.5", "8 3", "5 2 1.5 2", "6 2 1.5 2 1.5 2", "11 3", "3.5 2.5", "9 2 3 2", "4 4", "2 5", ""];
const QUANTITY_NAMES = {
  test_accuracy: "test accuracy", balanced_accuracy: "balanced accuracy", train_loss: "training loss", test_loss: "test loss",
};

// A metric of the page's tasks: its name in words, and whether it is a fraction.
const metricOf = (name) => DATA.metrics.find((metric) => metric.name === name);
const quantityTitle = (quantity) => QUANTITY_NAMES[quantity] || (metricOf(quantity) || { title: quantity }).title;
const isFraction = (quantity) => quantity.endsWith("accuracy") || Boolean((metricOf(quantity) || {}).percent);
const metricText = (metric, value) => (metric.percent ? percent(value) : value === null ? "–" : digits(value));

const SHAPES = [];  // of places beyond the page's own ten

// A framework that is not built in brings its colour, dashes and shape along.
function takeStyles(series) {
  for (const { slot, style } of series) {
    if (!style) continue;
    DASHES[slot] = style.dashes;
    SHAPES[slot] = style.shape;
    document.documentElement.style.setProperty(`--s${slot}`, `color-mix(in srgb, white var(--own-white), ${style.colour})`);
  }
}

function marker(slot, x, y, r = 4) {
  const colour = `var(--s${slot})`, at = (points) => points.map(([dx, dy]) => `${x + r * dx},${y + r * dy}`).join(" ");
  const polygon = (points) => s("polygon", { class: "marker", points: at(points), style: `fill:${colour}` });
  const strokes = (d) => s("path", { class: "marker thin", d, style: `stroke:${colour}` });
  switch (SHAPES[slot] ?? slot) {
    case 0: return strokes(`M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`);
    case 1: return polygon([[-.9, -.9], [.9, -.9], [.9, .9], [-.9, .9]]);
    case 2: return polygon([[-1.1, -.8], [1.1, -.8], [0, 1.1]]);
    case 3: return polygon([[-1.1, .8], [1.1, .8], [0, -1.1]]);
    case 4: return polygon([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
    case 5: return strokes(`M${x - r} ${y}L${x + r} ${y}M${x} ${y - r}L${x} ${y + r}`);
    case 6: return polygon([[.8, -1.1], [.8, 1.1], [-1.1, 0]]);
    case 7: return polygon([[-.8, -1.1], [-.8, 1.1], [1.1, 0]]);
    case 8: return polygon([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((i) => {
      const angle = Math.PI * (i / 5 - .5), length = i % 2 ? .55 : 1.35;
      return [length * Math.cos(angle), length * Math.sin(angle)];
    }));
    default: return s("circle", { class: "marker", cx: x, cy: y, r, style: `fill:${colour}` });
  }
}

function curveSample(slot) {
  return s("svg", { width: 36, height: 14, viewBox: "0 0 36 14", "aria-hidden": "true" },
    s("line", { x1: 0, y1: 7, x2: 36, y2: 7, class: "line", "stroke-dasharray": DASHES[slot], style: `stroke:var(--s${slot})` }),
    marker(slot, 18, 7));
}

// The points of a series that can be drawn: [{x, y, low, high}], x and y in units of the axes.
function pointsOf(series, quantity, over, xUnit, yScale) {
  const curve = (series.curves[quantity] || {})[over];
  if (!curve) return [];
  return curve.x.map((x, i) => ({
    x: x / xUnit, y: curve.mean[i] === null ? null : curve.mean[i] * yScale,
    low: curve.low && curve.low[i] !== null ? curve.low[i] * yScale : null,
    high: curve.high && curve.high[i] !== null ? curve.high[i] * yScale : null,
  })).filter((point) => point.y !== null);
}

// The value of a series at x: that of the last point before it, as a run keeps its model between rounds.
function valueAt(points, x) {
  if (!points.length || x < points[0].x - 1e-9 || x > points[points.length - 1].x + 1e-9) return null;
  let last = points[0];
  for (const point of points) if (point.x <= x + 1e-9) last = point; else break;
  return last;
}

function linePath(points, px, py, steps) {
  return points.map((point, i) => {
    if (!i) return `M${px(point.x).toFixed(1)} ${py(point.y).toFixed(1)}`;
    return steps ? `H${px(point.x).toFixed(1)}V${py(point.y).toFixed(1)}` : `L${px(point.x).toFixed(1)} ${py(point.y).toFixed(1)}`;
  }).join("");
}

function bandPath(points, px, py) {
  const known = points.filter((point) => point.low !== null);
  if (known.length < 2) return null;
  const there = known.map((p) => `${px(p.x).toFixed(1)} ${py(p.high).toFixed(1)}`);
  const back = known.reverse().map((p) => `${px(p.x).toFixed(1)} ${py(p.low).toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}

// An interval: a pale band, or bars at a few points where many curves cross, each curve's at places of its own.
function interval(points, slot, place, count, px, py) {
  const known = points.filter((point) => point.low !== null), colour = `var(--s${slot})`;
  if (!known.length) return [];
  const band = count <= 2 ? bandPath(points.slice(), px, py) : null;
  if (band) return [s("path", { class: "band", d: band, style: `fill:${colour}` })];
  const every = Math.max(1, Math.floor(known.length / 6)), first = known.length <= 6 ? 0 : Math.floor(place * every / count);
  return known.filter((_, i) => i >= first && (i - first) % every === 0).map((point) => errorBar(px(point.x), py(point.low), py(point.high), colour));
}

const errorBar = (x, low, high, colour) => s("path", { class: "interval", d: `M${x} ${low}V${high}M${x - 3} ${low}h6M${x - 3} ${high}h6`, style: `stroke:${colour}` });

const ANY_VALUE = [-Infinity, Infinity];

// For each curve, the number of the first curve that it coincides with, its own number if there is none. Curves coincide if they have
// at least two points in common, or are a point each, and are the same wherever both are known.
function liesOn(curves) {
  const ys = curves.flat().map((point) => point.y), close = 0.004 * (Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1), firsts = [];
  curves.forEach((points, place) => {
    const same = (of) => {
      const at = new Map(curves[of].map((point) => [point.x, point.y])), both = points.filter((point) => at.has(point.x));
      return both.length >= Math.min(2, Math.max(points.length, at.size)) && both.every((point) => Math.abs(point.y - at.get(point.x)) <= close);
    };
    const first = curves.findIndex((_, of) => of < place && firsts[of] === of && same(of));
    firsts.push(first < 0 ? place : first);
  });
  return firsts;
}

// Dashes that leave room for the dashes of coinciding curves; null for a curve that coincides with no other.
function sharedDashes(firsts, place) {
  const group = [...firsts.keys()].filter((other) => firsts[other] === firsts[place]), dash = 7;
  if (group.length < 2) return null;
  return { "stroke-dasharray": `${dash} ${dash * (group.length - 1)}`, "stroke-dashoffset": dash * group.indexOf(place) };
}

function coincidenceNote(firsts, names) {
  const groups = new Map();
  firsts.forEach((of, place) => { if (of !== place) groups.set(of, [...(groups.get(of) || []), names[place]]); });
  return [...groups].map(([of, all]) => `${all.length > 1 ? `${all.slice(0, -1).join(", ")} and ${all[all.length - 1]} lie` : `${all[0]} lies`} on ${names[of]}.`).join(" ");
}

// From the lowest to the highest value, with the ends of all intervals; room beyond them, though not below 0 where nothing is. Of few seeds an
// interval may end where no value can be: the axis ends at the least and the most that a value can be.
function yRange(points, [least, most], target) {
  const low = Math.min(...points.map((point) => point.low ?? point.y), target ?? Infinity), high = Math.max(...points.map((point) => point.high ?? point.y), target ?? -Infinity);
  const slack = (high - low || Math.abs(high) || 1) * 0.06, from = low - slack, to = high + slack;
  return [Math.max(low < 0 ? least : 0, from), Math.min(most, to)];
}

function curveChart(holder, quantity, over, allSeries, target) {
  const fraction = isFraction(quantity), yScale = fraction ? 100 : 1, aim = target !== null && DATA.metrics.length && quantity === DATA.metrics[0].name ? yScale * target : null;
  const ends = allSeries.map((series) => (series.curves[quantity] || {})[over]).filter(Boolean).map((curve) => curve.x[curve.x.length - 1]);
  const [xUnit, unit] = over === "time" ? timeUnit(Math.max(0, ...ends)) : [1, ""];
  const curves = allSeries.map((series) => ({ series, points: pointsOf(series, quantity, over, xUnit, yScale) })).filter((curve) => curve.points.length);
  const width = Math.max(280, holder.clientWidth - 26), height = 236, left = 46, right = 10, top = 10, bottom = 40;
  const name = `${quantityTitle(quantity)} over ${over === "time" ? "simulated time" : "rounds"}`;
  const [low, high] = yRange(curves.flatMap(({ points }) => points), fraction ? [0, 100] : quantity.endsWith("_loss") ? [0, Infinity] : ANY_VALUE, aim);
  const farthest = Math.max(...curves.map(({ points }) => points[points.length - 1].x));
  const px = scale(over === "time" ? 0 : Math.min(1, farthest - 1), farthest, left, width - right), py = scale(low, high, height - bottom, top);

  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "data-chart": `${quantity}-${over}` });
  if (!curves.length) return svg;
  for (const y of ticks(low, high, 5)) {
    svg.append(s("line", { class: "gridline", x1: left, x2: width - right, y1: py(y), y2: py(y) }),
      s("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, digits(y, 4)));
  }
  const steps = over === "time" ? ticks(0, farthest, width / 80) : ticks(1, farthest, width / 60).filter(Number.isInteger);
  for (const x of steps) svg.append(s("text", { x: px(x), y: height - bottom + 17, "text-anchor": "middle" }, digits(x, 4)));
  svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    s("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, over === "time" ? `simulated time (${unit})` : "round"));
  if (aim !== null) svg.append(s("line", { class: "target", x1: left, x2: width - right, y1: py(aim), y2: py(aim) }),
    s("text", { x: left + 4, y: py(aim) - 4 }, `target ${digits(aim)}${fraction ? " %" : ""}`));
  const clip = `plot-${quantity}-${over}`;
  svg.append(s("defs", {}, s("clipPath", { id: clip }, s("rect", { x: left, y: top, width: width - right - left, height: height - top - bottom }))));
  curves.sort((a, b) => DASHES[a.series.slot].length - DASHES[b.series.slot].length);  // solid below dashed
  const firsts = liesOn(curves.map(({ points }) => points)), inside = s("g", { "clip-path": `url(#${clip})` });
  svg.append(inside);  // intervals lie beneath all lines
  curves.forEach(({ series, points }, place) => inside.append(...interval(points, series.slot, place, curves.length, px, py)));
  curves.forEach(({ series, points }, place) => {
    const style = `stroke:var(--s${series.slot})`, dashes = sharedDashes(firsts, place) || { "stroke-dasharray": DASHES[series.slot] };
    svg.append(s("path", { class: "line", "data-label": series.label, d: linePath(points, px, py, over === "time" && series.steps), ...dashes, style }));
    const every = Math.max(1, Math.floor(points.length / 7)), first = Math.floor(place * every / 3) % every;
    points.forEach((point, i) => { if (i % every === first || points.length === 1) svg.append(marker(series.slot, px(point.x), py(point.y), Math.max(3, 5 - place))); });
  });
  svg.note = coincidenceNote(firsts, curves.map(({ series }) => series.name));
  const say = (value) => (fraction ? `${value.toFixed(2)} %` : digits(value));
  const ended = curves.map(({ series, points }) => `${series.name} ${say(points[points.length - 1].y)}`).join(", ");
  svg.setAttribute("aria-label", `${name}; at the end ${ended}. Arrow keys read the values.`);
  followCurve(svg, curves, { px, py, left, width, right, top, bottom, height, unit, over, say });
  return svg;
}

// A crosshair at the nearest point of all curves, with every curve's value there.
function followCurve(svg, curves, at) {
  const xs = [...new Set(curves.flatMap(({ points }) => points.map((point) => point.x)))].sort((a, b) => a - b);
  const cross = s("g", { "aria-hidden": "true" });
  svg.append(cross);
  let place = -1;
  const show = (event) => {
    const x = xs[place];
    clear(cross).append(s("line", { class: "cross", x1: at.px(x), x2: at.px(x), y1: at.top, y2: at.height - at.bottom }));
    const rows = curves.map(({ series, points }) => [series, valueAt(points, x)]).filter(([, point]) => point);
    rows.sort(([, a], [, b]) => b.y - a.y);
    for (const [series, point] of rows) cross.append(marker(series.slot, at.px(x), at.py(point.y), 5));
    const tableRows = rows.map(([series, point]) => h("tr", {}, h("td", {}, curveSample(series.slot)), h("td", {}, series.name), h("td", {}, at.say(point.y)),
      h("td", {}, point.low === null ? "" : `${at.say(point.low)} to ${at.say(point.high)}`)));
    showTip(event, h("strong", {}, at.over === "time" ? `${digits(x)} ${at.unit}` : `round ${digits(x)}`), h("table", {}, tableRows));
  };
  const leave = () => { clear(cross); hideTip(); };
  tipFor(svg, (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * at.width / box.width;
    place = 0;
    xs.forEach((value, i) => { if (Math.abs(at.px(value) - x) < Math.abs(at.px(xs[place]) - x)) place = i; });
    show(event);
  }, leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    place = Math.max(0, Math.min(xs.length - 1, place + step));
    const box = svg.getBoundingClientRect();
    show({ clientX: box.left + at.px(xs[place]) * box.width / at.width, clientY: box.top + 30 });
    $("tip").setAttribute("aria-live", "polite");
  });
}
