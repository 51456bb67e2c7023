// Everything that is not a curve or a Gantt chart: headlines, the plan, data sent, clients, settings.
// The comparison's tables come ready from comparison.py (_accuracy_table and its neighbours); drawOverview shows them.

const LINKS = {
  client_main_up: "client to main server", client_main_down: "main server to client", client_edge_up: "client to edge server",
  client_edge_down: "edge server to client", edge_main: "between the servers",
};
const STATUS = {
  finished: "finished", budget: "ended with its budget of simulated seconds", interrupted: "interrupted", diverged: "stopped: the loss is not a number",
  "under way": "under way",
};
const SOLVED = {
  optimal: "optimal within the gap that was asked for", time_limit: "stopped at the time limit",
  dropped: "some clients cannot finish within tau and sit this round out", heuristic: "a rule without a proof chose part of this",
};

const HELD_UP = "Held up by: the client's longest phase of the round, and how long it took.";

function card(name, value, more, key) {
  return h("div", { class: "card" }, h("dt", {}, name), h("dd", { "data-key": key }, value, more ? h("small", {}, more) : null));
}

// "FL trains ...", "HSFL trains ..." -> "FL and HSFL train ..." where the rest is the same.
function openings(runs) {
  const names = new Map();
  for (const { framework_name: name, words: sentences } of runs) {
    const rest = sentences[0].startsWith(`${name} trains `) ? sentences[0].slice(name.length + 8) : sentences[0];
    names.set(rest, (names.get(rest) || new Set()).add(name));
  }
  return [...names].map(([rest, nameSet]) => {
    const all = [...nameSet], last = all.pop();
    return all.length ? `${all.join(", ")} and ${last} train ${rest}` : `${last} trains ${rest}`;
  });
}

const metricTitle = (run) => (run.metrics[0].name === "test_accuracy" ? "accuracy" : run.metrics[0].title);

// The columns of a ready table; words stand on the left, numbers on the right.
function textColumns(header, rows) {
  const isWords = (i) => rows.every((row) => /^[a-z]/i.test(row[i]) || row[i] === "-");
  return header.map((head, i) => ({ head, left: i > 0 && isWords(i), wide: i > 0 && isWords(i), cell: (row) => row[i] }));
}

function drawOverview(data) {
  const introduction = clear($("words")), headline = clear($("headline")), first = data.runs[0];
  if (!first) return;
  const same = data.runs.every((run) => run.words.join(" ").replace(/Seed \d+/, "") === first.words.join(" ").replace(/Seed \d+/, ""));
  const shared = same ? first.words : first.words.filter((sentence) => data.runs.every((run) => run.words.includes(sentence)));
  if (data.runs.length === 1 || same) introduction.append(h("p", {}, first.words.join(" ")));
  else introduction.append(h("p", {}, openings(data.runs).join(" ")), h("p", {}, shared.slice(shared[0] === first.words[0] ? 1 : 0).join(" ")));
  if (data.sharing.length) introduction.append(h("p", { id: "sharing" }, data.sharing.join(" ")));
  if (data.tables) {
    headline.append(...data.tables.gained.map((sentence) => h("p", { "data-key": "gained" }, sentence)));
    for (const { title, header, rows, notes } of data.tables.tables) {
      headline.append(table(title, textColumns(header, rows), rows), ...notes.map((note) => h("p", { class: "note" }, note)));
    }
    headline.append(...data.tables.notes.map((note) => h("p", { class: "note" }, note)));
    return;
  }
  const total = Object.values(first.bytes).reduce((a, b) => a + b, 0);
  headline.append(h("dl", { class: "cards" },
    card(`Best ${metricTitle(first)}`, metricText(first.metrics[0], first.best), first.best_round ? `in round ${first.best_round}` : "not evaluated yet", "best_accuracy"),
    card(`Last ${metricTitle(first)}`, metricText(first.metrics[0], first.last), "on the test samples", "last_accuracy"),
    card("Rounds", whole(first.num_rounds), first.num_rounds < first.planned_rounds ? `of ${whole(first.planned_rounds)}` : null, "num_rounds"),
    card(first.rounds.measured ? "Modelled time" : "Simulated time", span(first.sim_time_s), first.num_rounds ? `${seconds(first.sim_time_s / first.num_rounds)} a round` : null, "sim_time_s"),
    card("Data sent", sized(total), first.subset ? "training on a subset" : null, "bytes"),
    card("Dropped at tau", whole(first.drops), first.left_out ? `${whole(first.left_out)} times left out` : "times, over all rounds", "drops"),
    card(first.rounds.measured ? "Measured time" : "Computed in", span(first.wall_s), first.rounds.measured ? `${seconds(first.wall_s / first.num_rounds)} a round on the real machines` : "real time", "wall_s")));
}

// ---- the plan of a round

function signedPercent(ratio) {
  const text = percent(Math.abs(ratio), 1);
  return text === "0.0 %" ? text : `${ratio > 0 ? "+" : "−"}${text}`;
}

const clientCell = (row) => (row.name || "").replace(/^client /, "") || `${row.client}`;

function bottleneck(row) {
  if (row.away) return null;
  const beside = ["decoder", row.dropped ? "model_down" : ""];  // who is dropped gets the next model, but was late before
  const bars = row.bars.filter((bar) => !beside.includes(bar.phase));
  return bars.length ? bars.reduce((a, b) => (b.seconds > a.seconds ? b : a)) : null;
}

function drawPlan(run, r, model) {
  const body = clear($("plan-body"));
  if (!model || !model.rows.length) return body.append(h("p", { class: "note" }, "This page holds no timeline of this round."));
  if (model.pooled) return body.append(h("p", {}, `${run.framework_name} has no cuts: the main server trains alone on everyone's data.`));
  const allocation = run.rounds.allocation[r], columns = [
    { head: "client", cell: (row) => (row.dropped ? h("span", { class: "alarm" }, `${clientCell(row)}, dropped at tau`) : clientCell(row)) },
    { head: "cut", cell: (row) => `${row.cut}` }];
  if (allocation) {
    body.append(h("p", {}, `Policy ${run.policy}: ${SOLVED[allocation.status] || allocation.status}. `,
      allocation.gap === null ? "" : `Proven gap ${percent(allocation.gap, 2)}; no allocation for these cuts takes less than ${seconds(allocation.lower_bound_s)}. `,
      allocation.seconds === null ? "" : `Solved in ${seconds(allocation.seconds)}.`));
    const most = Math.max(...allocation.server_hz);
    columns.push({ head: "server cycles/s", cell: (row) => h("span", {}, scaled(allocation.server_hz[row.client], ""), meter(allocation.server_hz[row.client] / most)) });
    if (allocation.owner) columns.push({ head: "subchannel no.", left: true, cell: (row) => allocation.owner.flatMap((k, i) => (k === row.client ? [i] : [])).join(" ") || "–" });
    else if (allocation.share) columns.push({ head: "subchannels' worth", cell: (row) => digits(allocation.share[row.client], 3) });
    for (const [head, name] of [["power up", "up_power_w"], ["power down", "down_power_w"]]) {
      if (allocation[name]) columns.push({ head, cell: (row) => scaled(allocation[name][row.client], "W", []) }); // links of measured speed have none
    }
  } else {
    const shared = run.rounds.measured ? "The main server takes the clients' steps in turn, by a fair queue."
      : "Server cycles, subchannels and power are shared evenly among the clients of a turn; clients send with all they have.";
    body.append(h("p", {}, run.policy === "even" ? shared : `Policy ${run.policy}: this framework keeps no record of who got what; the bars above show its effect.`));
    if (run.clients && run.clients.max_power_w.some((power) => power !== null) && !run.measured) columns.push({ head: "power up", cell: (row) => scaled(run.clients.max_power_w[row.client], "W", []) });
  }
  columns.push(
    { head: "held up by", left: true, cell: (row) => { const bar = bottleneck(row); return bar ? PHASE_LABELS[bar.phase] : "–"; } },
    { head: "for", cell: (row) => { const bar = bottleneck(row); return bar ? seconds(bar.seconds) : "–"; } },
    { head: "waits", cell: (row) => (row.away ? "left out" : seconds(row.waited)) });
  body.append(table(`Round ${run.rounds.round[r]}`, columns, model.rows), h("p", { class: "note" }, HELD_UP));
  if (model.rows.length < run.num_clients) body.append(h("p", { class: "note" }, `${model.rows.length} of ${whole(run.num_clients)} clients: ${run.rounds.straggler[r] === null ? "" : "the straggler, and "}those that wait least.`));
}

// On real machines: what a client's phases took, beside what was modelled.
function drawMeasured(run, r, model) {
  const rows = run.rounds.measured && run.rounds.measured[r], body = $("plan-body");
  if (!rows || !rows.length) return;
  const names = new Map((model ? model.rows : []).map((row) => [row.client, clientCell(row)]));
  const both = (pair) => (pair ? `${seconds(pair[0])} / ${seconds(pair[1])}` : "–");
  const columns = [{ head: "client", cell: (row) => names.get(row.client) || `${row.client}` },
    ...Object.keys(rows[0].phases).map((phase) => ({ head: phase.replace("_", " "), cell: (row) => both(row.phases[phase]) })),
    { head: "in all", cell: (row) => both(row.total) },
    { head: "error", cell: (row) => (row.error === null ? "–" : signedPercent(row.error)) }];
  body.append(table(`Round ${run.rounds.round[r]}: measured / modelled`, columns, rows),
    h("p", { class: "note" }, "Measured on the real machines, and modelled from what was measured before. Waiting is for the main server while it serves other clients."));
}

// The parts of a round in which no client trains: on real machines measured beside modelled, else modelled alone.
function drawEnding(run, r) {
  const parts = run.rounds.ending && run.rounds.ending[r], body = $("plan-body");
  if (!parts || !parts.length) return;
  const onMachines = Boolean(run.rounds.measured), time = (value) => (value === null ? "–" : seconds(value));
  const columns = [{ head: "part", left: true, cell: (row) => row.part },
    ...(onMachines ? [{ head: "measured", cell: (row) => time(row.seconds[0]) }] : []),
    { head: onMachines ? "modelled" : "simulated", cell: (row) => time(row.seconds[1]) }];
  body.append(table(`Round ${run.rounds.round[r]}: the parts in which no client trains`, columns, parts),
    h("p", { class: "note" }, "Open: cuts are planned and clients are told. Distribute and upload: the slowest client's model. Swap: the sums of the units that both servers hold. Waiting in the table above holds the servers' parts."));
}

function drawPlans(plans, charts) {
  const body = clear($("plans-body"));
  charts.length = 0;
  for (const plan of plans) {
    if (plans.length > 1) body.append(h("h3", {}, plan.folder));
    if (plan.words) body.append(h("p", {}, plan.words));
    body.append(h("dl", { class: "cards" }, card("A round", seconds(plan.round_s), `mean of ${plan.num_samples} ${plan.crowd ? "sampled rounds" : "samples"}`, "plan_round_s"),
      card("Nothing can beat", seconds(plan.lower_bound_s), plan.crowd ? "with these cuts" : "whatever the cuts", "plan_bound_s"), card("Proven gap", percent(plan.gap), null, "plan_gap"),
      card("Searched for", seconds(plan.search_s), `policy ${plan.policy}`)), ...plan.notes.map((note) => h("p", { class: "note" }, note)));
    if (plan.crowd) drawPlannedCrowd(plan.crowd, body);
    else drawPlannedClients(plan, body, charts);
    if (plan.why_words) body.append(h("p", { "data-key": "plan_why" }, plan.why_words));
    if (!plan.crowd) body.append(h("p", { class: "note" }, HELD_UP));
    const best = plan.baselines_s.proposed;
    body.append(table(plan.crowd ? "Policies in the same rounds, each with the cuts that a run plans for it" : "Policies on the same samples", [
      { head: "policy", cell: ([name]) => name }, { head: "mean round", cell: ([, mean]) => seconds(mean) },
      { head: "longer than proposed", cell: ([, mean]) => (best ? signedPercent(mean / best - 1) : "–") },
    ], Object.entries(plan.baselines_s)));
  }
}

function drawPlannedClients(plan, body, charts) {
  const holder = h("div", {}), most = Math.max(...plan.clients.map((client) => client.server_hz));
  body.append(h("h3", {}, "The planned round, each phase over all mini-batches together"), holder);
  const chart = new Gantt(holder, `plan ${charts.length + 1}`), model = planModel(plan);
  chart.show(model, `${plan.clients.length} clients, ${seconds(model.roundS)}`);
  charts.push(chart);
  const watts = (name) => (client) => scaled(client[name], "W", []);
  body.append(table("What each client gets (first sample)", [
    { head: "client", cell: clientCell }, { head: "cut", cell: (client) => (client.codec ? `${client.cut} ${client.codec}` : `${client.cut}`) },
    { head: "server cycles/s", cell: (client) => h("span", {}, scaled(client.server_hz, ""), meter(client.server_hz / most)) },
    ...(plan.clients[0].main_up_power_w === null ? [] : [ // links of measured speed have no radio
      { head: "subchannel no.", left: true, cell: (client) => (client.subchannels ? client.subchannels.join(" ") : "shared") },
      { head: "power up", cell: watts("main_up_power_w") }, { head: "power down", cell: watts("main_down_power_w") }]),
    { head: "held up by", left: true, cell: (client) => PHASE_LABELS[client.bottleneck] }, { head: "for", cell: (client) => seconds(client.seconds[client.bottleneck]) },
  ], plan.clients.slice(0, DATA.max_clients)));
}

function drawPlannedCrowd(crowd, body) {
  const chosen = crowd.num_chosen.reduce((a, b) => a + b, 0) / crowd.num_chosen.length, cells = crowd.num_cells > 1 ? ` in ${whole(crowd.num_cells)} cells` : "";
  body.append(h("p", { "data-key": "plan_crowd" }, `${whole(crowd.num_clients)} clients${cells}, of whom ${whole(Math.round(chosen))} take part in a round. Clients by cut: ${byCut(crowd.cuts)}.`),
    h("p", { class: "note" }, "The last of the sampled rounds: so many per cent of its clients take at most the seconds shown, each phase over all mini-batches together."));
  const rows = Object.entries(crowd.seconds).map(([name, values]) => [PHASE_LABELS[name] || name.replaceAll("_", " "), seconds, values]);
  rows.push(["training and upload end", seconds, crowd.finish_s]);
  if (crowd.cell_hz.length) rows.push(["main server's cycles/s for a cell", (v) => scaled(v, ""), crowd.cell_hz]);
  body.append(quantileTable(crowd.quantiles, rows));
}

// ---- data sent

function drawBytes(run) {
  const body = clear($("bytes-body")), links = Object.keys(run.bytes), rounds = run.rounds.bytes;
  if (!rounds.length) return body.append(h("p", { class: "note" }, "No round has ended yet."));
  const sums = rounds.map((counts) => counts.reduce((a, b) => a + b, 0)), highest = Math.max(...sums) || 1;
  const width = Math.max(280, body.clientWidth - 26), height = 190, left = 70, top = 8, bottom = 36, wide = (width - left - 8) / rounds.length;
  const py = scale(0, highest, height - bottom, top), per = Math.max(1, Math.ceil(rounds.length / 400));
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `data sent in each of ${rounds.length} rounds, at most ${sized(highest)}` });
  for (const y of ticks(0, highest, 4)) svg.append(s("line", { class: "gridline", x1: left, x2: width - 8, y1: py(y), y2: py(y) }),
    s("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, y ? sized(y) : "0"));
  rounds.forEach((counts, r) => {
    if (r % per) return;
    let below = 0;
    const bar = s("g", { "data-round": r });
    counts.forEach((count, link) => {
      if (!count) return;
      bar.append(s("rect", { class: `l${link % 5}`, x: left + r * wide + wide * per * 0.08, width: Math.max(wide * per * 0.84, 0.5), y: py(below + count), height: Math.max(py(below) - py(below + count), 0) }));
      below += count;
    });
    svg.append(bar);
  });
  const first = run.rounds.round[0];
  for (const r of ticks(first, first + rounds.length - 1, width / 60).filter(Number.isInteger)) {
    svg.append(s("text", { x: left + (r - first + 0.5) * wide, y: height - bottom + 16, "text-anchor": "middle" }, `${r}`));
  }
  svg.append(s("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  tipFor(svg, (event) => {
    const group = event.target.closest("[data-round]");
    if (!group) return hideTip();
    const r = +group.dataset.round;
    showTip(event, h("strong", {}, `round ${run.rounds.round[r]}: ${sized(sums[r])}`), h("table", {}, links.map((link, i) => h("tr", {}, h("td", {}, LINKS[link] || link), h("td", {}, sized(rounds[r][i]))))));
  });
  const swatch = (i) => s("svg", { width: 14, height: 12, "aria-hidden": "true", style: "margin-right:8px" }, s("rect", { class: `l${i % 5}`, width: 14, height: 12, rx: 2 }));
  const total = Object.values(run.bytes).reduce((a, b) => a + b, 0), num = rounds.length;
  body.append(h("figure", {}, h("figcaption", {}, "In each round"), svg), table("Over the whole run", [
    { head: "link", cell: ([, name, i]) => h("span", {}, i === null ? null : swatch(i), name) }, { head: "total", cell: ([count]) => sized(count) },
    { head: "bytes", cell: ([count, , i]) => h("span", { "data-bytes": i === null ? "total" : links[i] }, whole(count)) }, { head: "a round", cell: ([count]) => sized(count / num) },
  ], [...links.map((link, i) => [run.bytes[link], LINKS[link] || link, i]), [total, "all links", null]]));
  if (run.subset) body.append(h("p", { class: "note" }, run.subset));
  if (run.drops) body.append(h("p", { class: "note" }, "Counted for the clients that were kept; what a dropped client sent before tau is not in it."));
}

// ---- clients

function histogram(counts, names, highest) {
  const barWidth = Math.max(3, Math.min(9, 90 / counts.length)), height = 22, label = counts.map((count, c) => `${names[c]}: ${count}`).join(", ");
  const svg = s("svg", { class: "histogram", width: barWidth * counts.length, height, role: "img", "aria-label": label, tabindex: "-1" });
  counts.forEach((count, c) => svg.append(s("rect", { x: c * barWidth, width: barWidth - 1, y: height - 1 - (height - 2) * count / highest, height: (height - 2) * count / highest })));
  svg.append(s("line", { x1: 0, x2: barWidth * counts.length, y1: height - 0.5, y2: height - 0.5 }));
  tipFor(svg, (event) => showTip(event, counts.map((count, c) => `${names[c]}: ${count}`).join("\n")));
  return svg;
}

// Quantiles over a large fleet: a row for each quantity [name, how to say it, its quantiles], a column for each quantile.
function quantileTable(quantiles, rows) {
  return table(null, [{ head: "", left: true, cell: (row) => row[0] },
    ...quantiles.map((q, i) => ({ head: q === 0 ? "least" : q === 100 ? "most" : `${q} %`, cell: (row) => row[1](row[2][i]) }))], rows);
}

const byCut = (counts) => Object.entries(counts).map(([cut, count]) => `${cut}: ${whole(count)}`).join(", ");

function drawCrowd(run, body) {
  const { crowd, quantiles } = run, last = run.num_rounds ? run.rounds.crowd[run.num_rounds - 1] : null;
  const at = (rows) => quantileTable(quantiles, rows);
  body.append(h("p", { class: "note" }, `${whole(crowd.num_clients)} clients, too many for a row each: so many per cent of them have at most the number shown. Clients by cut: ${byCut(crowd.cuts)}; by the deepest cut that they can hold: ${byCut(crowd.max_cut)}.`));
  body.append(at([["samples", whole, crowd.num_samples], ["speed", (v) => scaled(v, "FLOP/s"), crowd.flops_per_s], ["power up", (v) => scaled(v, "W"), crowd.max_power_w]]));
  if (!last) return;
  body.append(h("p", { class: "note" }, `The last round, over the ${whole(last.num_started)} clients that took part:`));
  body.append(at(Object.entries(last.quantiles).map(([name, values]) => [name.replaceAll("_", " "), seconds, values])));
}

// What a client holds, by the names of the model's units.
function unitsOf(clients, cut) {
  const names = clients.unit_names || [];
  return !names.length ? "" : cut === 0 ? "holds no unit" : cut === 1 ? `holds ${names[0]}` : `holds ${names[0]} to ${names[cut - 1]}`;
}

function drawClients(run) {
  if (run.crowd) return drawCrowd(run, clear($("clients-body")));
  const body = clear($("clients-body")), { clients, counts } = run, num = counts.kept.length || (clients ? clients.num_samples.length : 0);
  const countOf = (name) => (k) => (counts[name].length ? whole(counts[name][k]) : "–"), columns = [{ head: "client", cell: (k) => nameOf(clients, k).replace(/^client /, "") }];
  if (clients) {
    const highest = Math.max(1, ...clients.class_counts.flat());
    columns.push({ head: "samples", cell: (k) => h("span", { "data-samples": k }, whole(clients.num_samples[k])) },
      ...(clients.class_names.length ? [{ head: "classes", left: true, cell: (k) => histogram(clients.class_counts[k], clients.class_names, highest) }] : []));
    columns.push({ head: "cut / deepest", cell: (k) => h("span", { title: unitsOf(clients, clients.cuts[k]) }, `${clients.cuts[k]} / ${clients.max_cut[k]}`) },
      clients.flops_per_s ? { head: "speed", cell: (k) => scaled(clients.flops_per_s[k], "FLOP/s") } : { head: "cycles/s", cell: (k) => scaled(clients.cpu_hz[k], "") });
  }
  if (clients && clients.versions) columns.push({ head: "hsfl / torch / Python", cell: (k) => (clients.versions[k] ? ["hsfl", "torch", "python"].map((name) => clients.versions[k][name] || "–").join(" / ") : "–") });
  columns.push({ head: "kept", cell: countOf("kept") }, { head: "dropped", cell: countOf("dropped") }, { head: "left out", cell: countOf("left_out") },
    { head: "straggler", cell: countOf("straggler") }, { head: "waited", cell: (k) => (counts.waiting_s.length ? seconds(counts.waiting_s[k]) : "–") });
  if (!clients) body.append(h("p", { class: "note" }, "Samples, classes and devices of the clients were not recorded by this run."));
  else body.append(h("p", { class: "note" }, `${clients.class_names.length ? `Bars are the client's samples of each of ${clients.class_names.length} classes, on one scale for all. ` : ""}Counts are rounds.${clients.cuts.some((cut, k) => cut > clients.max_cut[k]) ? " A cut deeper than the deepest that was drawn for the device was given, and taken at its word." : ""}`));
  body.append(table(null, columns, [...Array(num).keys()]));
  if (num < run.num_clients) body.append(h("p", { class: "note" }, `The first ${num} of ${whole(run.num_clients)} clients.`));
  if (clients && run.recall.length) {
    body.append(h("details", { "data-print": true }, h("summary", {}, "Recall by class in the last evaluated round"), table(null, [
      { head: "class", cell: (c) => clients.class_names[c] }, { head: "recall", cell: (c) => h("span", {}, percent(run.recall[c], 1), meter(run.recall[c])) },
    ], [...run.recall.keys()])));
  }
}

// ---- settings

function drawSettings(data) {
  const body = clear($("settings-body")), value = (row) => row.value ?? Object.entries(row.values).map(([name, text]) => `${name}: ${text}`).join("; ");
  const rowsTable = (caption, rows) => {
    const element = table(caption, [{ head: "setting", cell: (row) => row.name }, { head: "value", wide: true, cell: (row) => h("span", { class: row.usual ? null : "changed" }, value(row)) }], rows);
    element.classList.add("setting");
    return element;
  };
  const settings = data.settings.filter((row) => row.name !== "seed");
  if (settings.length) {
    body.append(rowsTable("Changed from the defaults", settings.filter((row) => !row.usual || row.name === "framework")),
      h("details", {}, h("summary", {}, `All ${settings.length} settings`), rowsTable("All settings", settings)));
  }
  const machines = new Map(data.runs.map((run) => [JSON.stringify(run.environment), run.environment]));
  for (const environment of machines.values()) {
    const rows = Object.entries(environment).flatMap(([name, text]) => (text && typeof text === "object" ? Object.entries(text) : [[name.replace("_", " "), text]]));
    if (!rows.length) continue;
    const element = table("Machine and versions", [{ head: "what", cell: ([name]) => name.replace("num ", "") }, { head: "value", wide: true, cell: ([, text]) => `${text}` }], rows);
    element.classList.add("setting");
    body.append(element);
  }
  const folders = table("Folders", [{ head: "run", cell: (run) => run.name }, { head: "folder", wide: true, cell: (run) => run.folder }, { head: "state", wide: true, cell: (run) => STATUS[run.status] || run.status }], data.runs);
  folders.classList.add("setting");
  if (data.runs.length) body.append(folders);
}
