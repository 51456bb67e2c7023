// A round as a Gantt chart: a row for each client, a bar for each phase, hatched where the client waits. It zooms.
// PHASE_LABELS names the bars; drawRow writes a row's label, drawPhaseLegend the legend, showBarTip what a bar says under the pointer.

const PHASE_LABELS = {
  client_forward: "client forward", client: "client's work", smashed: "smashed data up", server_forward: "server forward", server: "server's work",
  server_backward: "server backward", gradient: "gradient down", client_backward: "client backward",
  decoder: "decoder (beside)", model_up: "model up", model_down: "model down",
};
const SMASHED = "Smashed data: the activations of the client's last unit, which it sends to the main server; their gradient comes back.";
const TINY = 2e-5;  // of a round: gaps that rounding leaves are not waiting

// What to call a client: its device's name, where a fleet file names it.
const nameOf = (clients, k) => (clients && clients.names && clients.names[k] ? clients.names[k] : `client ${k}`);
const shortened = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
const pick = (value, i) => (Array.isArray(value) ? value[i] : value);

// The bars of a round, from the page's columns: see page_rounds.py.
function roundModel(run, r) {
  const columns = run.rounds, clients = columns.rows[r];
  if (!clients) return null;
  const away = new Set(columns.away[r]), dropped = new Set(columns.dropped[r]), cuts = cutsOf(run, r);
  const rows = clients.map((client, i) => ({
    client, name: nameOf(run.clients, client), waited: columns.waits[r][i], cut: cuts[client], away: away.has(client), dropped: dropped.has(client), straggler: client === columns.straggler[r], bars: [], reached: 0,
  }));
  for (const [phase, [start, length]] of Object.entries(columns.phases[r])) {
    rows.forEach((row, i) => {
      const duration = pick(length, i);
      if (!(duration > 0)) return;
      const from = start === null ? row.reached : pick(start, i);
      row.bars.push({ phase, start: from, end: from + duration, seconds: duration });
      row.reached = from + duration;
    });
  }
  return completeModel(rows, columns.round_s[r], run.tau_s, run.pooled);
}

function cutsOf(run, r) {
  while (r > 0 && run.rounds.cuts[r] === null) r--;
  return run.rounds.cuts[r];
}

function planModel(plan) {
  const names = plan.clients.length ? Object.keys(plan.clients[0].seconds) : [];  // in the order in which they happen
  const phases = names.slice(0, names.indexOf("model_up") + 1), closing = !phases.includes("model_down");
  const rows = plan.clients.slice(0, DATA.max_clients).map((client) => {
    const row = { client: client.client, name: client.name || `client ${client.client}`, cut: client.codec ? `${client.cut} ${client.codec}` : client.cut, bars: [], reached: 0 };
    for (const phase of phases) {
      const duration = client.seconds[phase];
      if (duration > 0 && phase !== "waiting") row.bars.push({ phase, start: row.reached, end: row.reached + duration, seconds: duration });
      row.reached += duration;
    }
    return row;
  });
  const barrier = Math.max(...rows.map((row) => row.reached));
  const together = rows.every((row) => barrier - row.reached <= 1e-6 * barrier);
  let end = barrier;
  rows.forEach((row, i) => {
    const duration = plan.clients[i].seconds.model_down;
    row.straggler = !together && (plan.why ? row.client === plan.why.client : row.reached === barrier);
    if (!closing) return;  // on a server that is one queue nobody waits for the heads of others
    row.bars.push({ phase: "model_down", start: barrier, end: barrier + duration, seconds: duration });
    end = Math.max(end, barrier + duration);
  });
  end += Object.values(plan.ending_s).reduce((a, b) => a + b, 0);  // for which everybody waits
  return completeModel(rows, end, null, false);
}

function completeModel(rows, roundS, tauS, pooled) {
  for (const row of rows) row.waits = row.away ? [] : waitingSpans(row.bars, roundS);
  const late = rows.filter((row) => row.dropped);
  const cutOff = late.map((row) => Math.max(0, ...row.bars.filter((bar) => bar.phase !== "model_down").map((bar) => bar.end)));
  const tau = tauS !== null && tauS !== undefined && tauS <= roundS * 1.001 ? tauS : late.length ? Math.max(...cutOff) : null;
  return { rows, roundS, tau, pooled };
}

function waitingSpans(bars, roundS) {
  const spans = [];
  let covered = 0;
  for (const { start, end } of [...bars].sort((a, b) => a.start - b.start).concat({ start: roundS, end: roundS })) {
    if (start - covered > TINY * roundS) spans.push([covered, start]);
    covered = Math.max(covered, end);
  }
  return spans;
}

const hasName = (row) => row.name !== `client ${row.client}`;

// ---- the chart

class Gantt {
  constructor(holder, name) {
    this.name = name;
    this.holder = holder;
    this.view = null;  // [from, to] in seconds
    this.pointers = new Map();
    this.svg = s("svg", { tabindex: "0", role: "img" });
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const buttons = h("div", { class: "controls zoom" },
      button("−", "Zoom out", () => this.zoom(0.5, 2)), button("+", "Zoom in", () => this.zoom(0.5, 0.5)),
      button("◂", "Earlier", () => this.pan(-0.25)), button("▸", "Later", () => this.pan(0.25)),
      button("Whole round", "Show the whole round", () => this.reset()),
      h("span", { class: "note" }, "Drag across a span, pinch, or click and turn the wheel. Keys: + − ← → 0"));
    this.keys = h("ul", { class: "keys", "aria-label": "Colours" });
    this.meaning = h("p", { class: "note" });
    clear(holder).append(buttons, h("figure", { class: "gantt" }, this.svg, this.keys, this.meaning));
    this.listen();
  }

  show(model, description) {
    const same = this.model && this.model.roundS === model.roundS && this.view;
    this.model = model;
    this.description = description;
    this.whole = [0, model.roundS || 1];
    if (!same) this.view = [...this.whole];
    this.draw();
  }

  reset() { this.view = [...this.whole]; this.draw(); }

  zoom(at, factor) {  // at: 0..1 of the view stays where it is
    const [from, to] = this.view, span = Math.max((to - from) * factor, this.whole[1] * 1e-6), pivot = from + at * (to - from);
    this.look(pivot - at * span, span);
  }

  pan(amount) { this.look(this.view[0] + amount * (this.view[1] - this.view[0]), this.view[1] - this.view[0]); }

  look(from, span) {
    const all = this.whole[1], wide = Math.min(span, all), start = Math.max(0, Math.min(from, all - wide));
    this.view = [start, start + wide];
    this.draw();
  }

  measure() {
    const width = Math.max(280, this.holder.clientWidth - 26), narrow = width < 560, num = this.model.rows.length;
    const longest = Math.max(0, ...this.model.rows.map((row) => (hasName(row) ? row.name.length : 0)));
    return { width, narrow, left: narrow ? (longest ? 100 : 62) : Math.max(112, Math.min(220, 52 + 7 * longest)), right: narrow ? 10 : 72, top: this.model.tau === null ? 24 : 40, row: num > 100 ? 12 : num > 30 ? 17 : 24 };
  }

  draw() {
    const { rows, roundS, tau } = this.model, at = (this.at = this.measure()), svg = clear(this.svg);
    const height = at.top + rows.length * at.row + 44, end = at.width - at.right;
    const px = (this.px = scale(this.view[0], this.view[1], at.left, end));
    set(svg, { viewBox: `0 0 ${at.width} ${height}`, "aria-label": `${this.name}: ${this.description}`,
      "data-from": this.view[0], "data-to": this.view[1], "data-rows": rows.length });
    const id = `clip-${this.name.replace(/\W/g, "")}`;
    svg.append(s("defs", {},
      s("clipPath", { id }, s("rect", { x: at.left, y: 0, width: end - at.left, height })),
      s("pattern", { id: `${id}-w`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        s("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }))));
    const unit = roundS >= ENDLESS_S ? roundS : 1;
    for (const x of ticks(this.view[0], this.view[1], (end - at.left) / 90)) {
      svg.append(s("line", { class: "gridline", x1: px(x), x2: px(x), y1: at.top, y2: height - 40 }),
        s("text", { x: px(x), y: height - 25, "text-anchor": "middle" }, `${digits(x / unit, 5)}`));
    }
    svg.append(s("text", { x: (at.left + end) / 2, y: height - 6, "text-anchor": "middle" }, unit === 1 ? "seconds from the start of the round" : "part of the round"));
    const bars = s("g", { "clip-path": `url(#${id})` });
    svg.append(bars);
    rows.forEach((row, i) => this.drawRow(svg, bars, row, at.top + i * at.row, i, `url(#${id}-w)`));
    this.mark(svg, "end", roundS, `end ${seconds(roundS)}`, height);
    if (tau !== null) this.mark(svg, "tau", tau, `tau ${seconds(tau)}`, height);
    this.drawPhaseLegend(id);
  }

  drawRow(svg, bars, row, y, place, hatch) {
    const { at, px } = this, thick = at.row * 0.76, font = Math.min(12, at.row - 1);
    const rowLabel = this.model.pooled ? "main server" : at.narrow ? `${hasName(row) ? shortened(row.name, 8) : row.client} · ${row.cut}` : `${shortened(row.name, 24)} · cut ${row.cut}`;
    const textClass = row.dropped ? "dropped" : row.straggler ? "strong" : "";
    svg.append(s("text", { x: at.left - 8, y: y + at.row / 2 + font * 0.36, "text-anchor": "end", class: textClass, style: `font-size:${font}px` }, rowLabel));
    const rowNote = row.dropped ? "dropped" : row.away ? "left out" : row.straggler ? "straggler" : "";
    if (!at.narrow && rowNote && !this.model.pooled) {
      svg.append(s("text", { x: at.width - at.right + 8, y: y + at.row / 2 + font * 0.36, class: textClass, style: `font-size:${font}px` }, rowNote));
    }
    if (place % 2) bars.append(s("rect", { class: "row odd", x: at.left, y, width: at.width - at.right - at.left, height: at.row }));
    const rect = (from, to, attributes) => {
      if (to < this.view[0] || from > this.view[1]) return;
      const x = px(Math.max(from, this.view[0])), width = Math.max(px(Math.min(to, this.view[1])) - x, 0.75);
      bars.append(s("rect", { x: x.toFixed(2), width: width.toFixed(2), "data-client": row.client, "data-start": from, "data-end": to, ...attributes }));
    };
    for (const [from, to] of row.waits) rect(from, to, { y: y + at.row * 0.12, height: thick, fill: hatch, "data-phase": "waiting" });
    for (const bar of row.bars) {
      const beside = bar.phase === "decoder";
      rect(bar.start, bar.end, {
        y: y + at.row * (beside ? 0.62 : 0.12), height: beside ? at.row * 0.26 : thick, class: `bar p-${bar.phase}`, "data-phase": bar.phase, "data-seconds": bar.seconds,
      });
    }
    if (row.dropped && this.model.tau !== null) {
      const x = px(this.model.tau), r = Math.min(5, at.row * 0.3), middle = y + at.row / 2;
      bars.append(s("path", { class: "drop", d: `M${x - r} ${middle - r}L${x + r} ${middle + r}M${x - r} ${middle + r}L${x + r} ${middle - r}` }));
    }
  }

  mark(svg, kind, time, text, height) {
    if (time < this.view[0] - 1e-12 || time > this.view[1] * (1 + 1e-9)) return;
    const x = this.px(time), late = x > this.at.width * 0.6;
    svg.append(s("line", { class: kind, x1: x, x2: x, y1: this.at.top - 4, y2: height - 40 }),
      s("text", { x: kind === "end" ? x : x + (late ? -4 : 4), y: kind === "tau" ? 29 : 12, "text-anchor": late ? "end" : "start", class: kind === "tau" ? "dropped" : "" }, text));
  }

  drawPhaseLegend(id) {
    const used = Object.keys(PHASE_LABELS).filter((phase) => this.model.rows.some((row) => row.bars.some((bar) => bar.phase === phase)));
    const swatch = (attributes) => s("svg", { width: 14, height: 12, "aria-hidden": "true" }, s("rect", { width: 14, height: 12, rx: 2, ...attributes }));
    clear(this.keys).append(...used.map((phase) => h("li", {}, swatch({ class: `p-${phase}` }), PHASE_LABELS[phase])));
    if (this.model.rows.some((row) => row.waits.length)) this.keys.append(h("li", {}, swatch({ fill: `url(#${id}-w)` }), "waiting"));
    this.meaning.textContent = used.includes("smashed") ? SMASHED : "";
  }

  // ---- pointer, wheel, keys

  fraction(event) {
    const box = this.svg.getBoundingClientRect(), x = (event.clientX - box.left) * this.at.width / box.width;
    return Math.max(0, Math.min(1, (x - this.at.left) / (this.at.width - this.at.right - this.at.left)));
  }

  listen() {
    const { svg } = this;
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== svg) return;  // the page scrolls until the chart is chosen
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(Math.sign(event.deltaX) * 0.08);
      else this.zoom(this.fraction(event), event.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.5, 0.5), "=": () => this.zoom(0.5, 0.5), "-": () => this.zoom(0.5, 2), ArrowLeft: () => this.pan(-0.15),
        ArrowRight: () => this.pan(0.15), 0: () => this.reset(), Home: () => this.reset(), Escape: () => { this.stop(); svg.blur(); } }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
    svg.addEventListener("dblclick", () => this.reset());
    svg.addEventListener("pointerdown", (event) => this.press(event));
    svg.addEventListener("pointermove", (event) => this.move(event));
    tipFor(svg, (event) => { if (!this.pointers.has(event.pointerId)) this.showBarTip(event); });
    for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, (event) => this.release(event, name === "pointerup"));
  }

  press(event) {
    this.pointers.set(event.pointerId, this.fraction(event));
    this.began = { at: this.fraction(event), view: [...this.view], touch: event.pointerType === "touch" };
    this.svg.setPointerCapture(event.pointerId);  // bars are drawn anew while they are dragged
    if (event.pointerType !== "touch") this.svg.focus({ preventScroll: true });
    if (this.pointers.size === 2) this.pinch = { view: [...this.view], spots: [...this.pointers.values()] };
  }

  move(event) {
    const position = this.fraction(event);
    if (!this.pointers.has(event.pointerId)) return;
    this.pointers.set(event.pointerId, position);
    hideTip();
    if (this.pinch && this.pointers.size === 2) return this.pinchTo([...this.pointers.values()]);
    if (!this.began) return;
    const [from, to] = this.began.view;
    if (this.began.touch) return this.look(from + (this.began.at - position) * (to - from), to - from);
    this.stop();
    const left = this.at.left, wide = this.at.width - this.at.right - left, a = Math.min(this.began.at, position), b = Math.max(this.began.at, position);
    this.svg.append(s("rect", { class: "brush", x: left + a * wide, width: (b - a) * wide, y: this.at.top, height: this.model.rows.length * this.at.row }));
  }

  pinchTo(spots) {
    const [from, to] = this.pinch.view, [p, q] = [...this.pinch.spots].sort((a, b) => a - b), [a, b] = [...spots].sort((x, y) => x - y);
    const span = (to - from) * (q - p) / Math.max(b - a, 0.02);
    this.look(from + p * (to - from) - a * span, span);
  }

  release(event, chosen) {
    const position = this.fraction(event), began = this.began;
    this.pointers.delete(event.pointerId);
    if (this.pointers.size < 2) this.pinch = null;
    this.stop();
    this.began = null;
    if (!chosen || !began || began.touch || Math.abs(position - began.at) < 0.01) return;
    const [from, to] = began.view, a = Math.min(began.at, position), b = Math.max(began.at, position);
    this.look(from + a * (to - from), Math.max((b - a) * (to - from), this.whole[1] * 1e-6));
  }

  stop() { for (const brush of this.svg.querySelectorAll(".brush")) brush.remove(); }

  showBarTip(event) {
    const under = document.elementFromPoint(event.clientX, event.clientY), bar = under && under.closest("[data-phase]");
    if (!bar) return hideTip();
    const { client, phase, start, end } = bar.dataset, duration = bar.dataset.seconds ?? end - start;
    const who = this.model.pooled ? "Main server" : this.model.rows.find((row) => row.client === +client).name.replace(/^client/, "Client");
    showTip(event, h("strong", {}, `${who}: ${PHASE_LABELS[phase] || phase}`), `\n${seconds(+start)} to ${seconds(+end)}\n${seconds(+duration)}`);
  }
}
