// A sweep: a metric against the first field, a curve for each contender with its interval, a chart for each value of the other fields.

const sweepMetric = new Map();  // by the sweep's folder, the metric that is chosen

function drawSweeps(sweeps) {
  const body = clear($("sweep-body"));
  for (const sweep of sweeps) {
    if (sweeps.length > 1) body.append(h("h3", {}, sweep.folder));
    if (!sweep.metrics.length) { body.append(h("p", { class: "note" }, "No run has ended yet.")); continue; }
    takeStyles(sweep.series);
    const metric = sweep.metrics.find(({ key }) => key === sweepMetric.get(sweep.folder)) || sweep.metrics[0];
    const select = choice("Metric", sweep.metrics.map(({ key, title }) => [key, title]), metric.key, (key) => { sweepMetric.set(sweep.folder, key); drawSweeps(DATA.sweeps); });
    const keys = sweep.series.map((series) => h("li", {}, curveSample(series.slot), series.name));
    const grid = h("div", { class: sweep.panels.length > 1 ? "grid" : "" });
    body.append(h("div", { class: "controls" }, select), h("ul", { class: "keys" }, keys), grid);
    sweep.panels.forEach((panel, p) => {
      const figure = h("figure", {}, h("figcaption", {}, panel.name ? `${capital(metric.title)}, ${panel.name}` : `${capital(metric.title)} against ${sweep.fields[0]}`));
      grid.append(figure);
      const chart = sweepChart(figure, sweep, metric, panel, metric.panels[p]);
      fill(figure, [chart, chart.note ? h("p", { class: "note" }, chart.note) : null]);
    });
    const { title, header, rows } = sweep.contenders;
    const differences = sweep.differences[metric.key].map(({ title, header, rows }) => table(title, header.map((head, i) => ({ head, cell: (row) => row[i] })), rows));
    body.append(sweepTable(sweep, metric), ...differences, rows.length ? table(title, textColumns(header, rows), rows) : "", ...sweep.notes.map((note) => h("p", { class: "note" }, note)));
  }
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function sweepTable(sweep, metric) {
  const cells = sweep.cells[metric.key], cellText = ([mean, half]) => (half ? `${digits(mean)} ± ${digits(half, 3)}` : digits(mean));
  const columns = sweep.fields.map((head, i) => ({ head, left: true, cell: (point) => point.settings[i] }));
  sweep.series.forEach((series, c) => columns.push({ head: series.name, cell: (_, p) => cellText(cells[p][c]) }));
  if (sweep.linked) {
    columns.push({ head: "more", left: true, cell: (point) => h("a", { href: `./${encodeURIComponent(point.folder)}/report.html` }, "its page") });
  }
  return table(capital(metric.title), columns, sweep.points);
}

function sweepChart(holder, sweep, metric, panel, curves) {
  const axis = sweep.axis, width = Math.max(280, holder.clientWidth - 26), height = 260, left = 58, right = 14, top = 10, bottom = 42;
  const at = (x) => (axis.log ? Math.log(x) : x), xs = axis.x.map(at), room = (Math.max(...xs) - Math.min(...xs)) * 0.06 || 0.5;
  const px = scale(Math.min(...xs) - room, Math.max(...xs) + room, left, width - right);
  const drawn = sweep.series.map((series, c) => ({ series, points: panel.places.flatMap((place, i) => (curves[c].mean[i] === null ? []
    : [{ x: xs[place], place, y: curves[c].mean[i], low: curves[c].low[i], high: curves[c].high[i] }])) })).filter((curve) => curve.points.length);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "data-sweep": metric.key });
  if (!drawn.length) return svg;
  const allPoints = metric.panels.flat().flatMap(({ mean, low, high }) => mean.map((y, i) => ({ y, low: low[i], high: high[i] }))).filter((point) => point.y !== null);
  const [low, high] = yRange(allPoints, ANY_VALUE, null), py = scale(low, high, height - bottom, top);
  for (const y of ticks(low, high, 5)) {
    svg.append(s("line", { class: "gridline", x1: left, x2: width - right, y1: py(y), y2: py(y) }), s("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, digits(y, 4)));
  }
  let free = -Infinity;  // texts that would run into each other are left out
  axis.texts.map((text, i) => [px(xs[i]), text]).sort(([a], [b]) => a - b).forEach(([x, text]) => {
    const half = text.length * 3.4;
    if (x - half < free) return;
    free = x + half + 6;
    svg.append(s("text", { x: Math.min(x, width - half), y: height - bottom + 17, "text-anchor": "middle" }, text));
  });
  svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    s("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, sweep.fields[0]));
  const clip = `sweep-${Math.random().toString(36).slice(2)}`, inside = s("g", { "clip-path": `url(#${clip})` });
  svg.append(s("defs", {}, s("clipPath", { id: clip }, s("rect", { x: left, y: top, width: width - right - left, height: height - top - bottom }))), inside);
  const firsts = liesOn(drawn.map(({ points }) => points)), shift = (place) => 4 * (place - (drawn.length - 1) / 2);
  drawn.forEach(({ series, points }, place) => {
    for (const point of points) if (point.low !== null) inside.append(errorBar(px(point.x) + shift(place), py(point.low), py(point.high), `var(--s${series.slot})`));
  });
  drawn.forEach(({ series, points }, place) => {
    const dashes = sharedDashes(firsts, place) || { "stroke-dasharray": DASHES[series.slot] };
    if (axis.numbers) svg.append(s("path", { class: "line", "data-label": series.label, d: linePath(points, px, py, false), ...dashes, style: `stroke:var(--s${series.slot})` }));
    for (const point of points) svg.append(marker(series.slot, px(point.x) + shift(place), py(point.y)));
  });
  svg.note = coincidenceNote(firsts, drawn.map(({ series }) => series.name));
  const ends = drawn.map(({ series, points }) => `${series.name} ${digits(points[0].y)} to ${digits(points[points.length - 1].y)}`).join(", ");
  svg.setAttribute("aria-label", `${metric.title} against ${sweep.fields[0]}: ${ends}. The table below has all values.`);
  tipFor(svg, (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * width / box.width;
    const place = [...xs.keys()].reduce((a, b) => (Math.abs(px(xs[b]) - x) < Math.abs(px(xs[a]) - x) ? b : a));
    const rows = drawn.map(({ series, points }) => [series, points.find((point) => point.place === place)]).filter(([, point]) => point);
    showTip(event, h("strong", {}, axis.texts[place]), h("table", {}, rows.map(([series, point]) => h("tr", {}, h("td", {}, curveSample(series.slot)), h("td", {}, series.name),
      h("td", {}, digits(point.y)), h("td", {}, point.low === null ? "" : `${digits(point.low)} to ${digits(point.high)}`)))));
  });
  return svg;
}
