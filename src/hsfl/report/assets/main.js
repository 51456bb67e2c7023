// Puts the page together, keeps what is chosen, and follows a run under way where a server is there to ask.

let DATA = JSON.parse($("data").textContent);
const chosen = { run: 0, round: 0, hidden: new Set(), metric: null, loss: "train_loss", followed: true };
const planCharts = [];
let gantt = null;

const has = (quantity) => DATA.series.some((series) => series.curves[quantity] && series.curves[quantity].rounds);
const run = () => DATA.runs[chosen.run];
const roundsWithChart = () => run().rounds.rows.flatMap((rows, r) => (rows ? [r] : []));  // rounds with a Gantt chart

function choice(label, options, value, act) {
  const select = h("select", { onchange: () => act(select.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", {}, label, select);
}

function drawCurveControls() {
  const body = clear($("curve-controls")), options = (names) => names.filter(has).map((name) => [name, quantityTitle(name)]);
  const metrics = options(DATA.metrics.map((metric) => metric.name)), losses = options(["train_loss", "test_loss"]);
  if (!metrics.some(([name]) => name === chosen.metric)) chosen.metric = metrics.length ? metrics[0][0] : null;
  const title = DATA.metrics.every((metric) => metric.name.endsWith("accuracy")) ? "Accuracy" : "Metric";
  if (metrics.length > 1) body.append(choice(title, metrics, chosen.metric, (name) => { chosen.metric = name; drawCurves(); }));
  if (losses.length > 1) body.append(choice("Loss", losses, chosen.loss, (name) => { chosen.loss = name; drawCurves(); }));
  const legend = clear($("curve-legend"));
  for (const series of DATA.series) {
    const button = h("button", { type: "button", "aria-pressed": `${!chosen.hidden.has(series.label)}`, "data-label": series.label, onclick: () => {
      chosen.hidden.has(series.label) ? chosen.hidden.delete(series.label) : chosen.hidden.add(series.label);
      button.setAttribute("aria-pressed", `${!chosen.hidden.has(series.label)}`);
      drawCurves();
    } }, curveSample(series.slot), series.name);
    legend.append(button);
  }
}

function drawCurves() {
  const body = clear($("curves")), shown = DATA.series.filter((series) => !chosen.hidden.has(series.label));
  const quantities = [chosen.metric, chosen.loss].filter((name) => name && has(name));
  for (const quantity of quantities) {
    for (const over of ["time", "rounds"]) {
      const title = quantityTitle(quantity), unit = isFraction(quantity) ? " (%)" : "";
      const figure = h("figure", {}, h("figcaption", {}, `${title[0].toUpperCase()}${title.slice(1)}${unit} over ${over === "time" ? "simulated time" : "rounds"}`));
      body.append(figure);
      const chart = curveChart(figure, quantity, over, shown, DATA.target);
      fill(figure, [chart, chart.note ? h("p", { class: "note" }, chart.note) : null]);
    }
  }
  const counts = DATA.series.map((series) => series.num_seeds), most = Math.max(0, ...counts);
  const spread = most > 2 ? "Mean and 95 % confidence interval over seeds" : "Mean over two seeds";
  $("curve-note").textContent = !quantities.length ? "No round has ended yet."
    : most > 1 ? `${spread}${counts.includes(2) ? "; of two seeds the range is drawn" : ""}; a curve ends where the first of its seeds ends.` : "";
}

function drawRoundControls() {
  const body = clear($("round-controls")), rounds = roundsWithChart();
  if (DATA.runs.length > 1) body.append(choice("Run", DATA.runs.map(({ name }, i) => [`${i}`, name]), `${chosen.run}`, (i) => { chosen.run = +i; chosen.round = lastDrawn(); drawRun(); }));
  if (!rounds.length) return;
  const place = Math.max(0, rounds.indexOf(chosen.round)), output = h("output", {}, `${run().rounds.round[rounds[place]]} of ${run().num_rounds}`);
  const go = (i) => {
    const at = Math.max(0, Math.min(rounds.length - 1, i));
    slider.value = at;
    chosen.round = rounds[at];
    chosen.followed = at === rounds.length - 1;
    output.textContent = `${run().rounds.round[chosen.round]} of ${run().num_rounds}`;
    slider.setAttribute("aria-valuetext", `round ${output.textContent}`);
    drawRound();
  };
  const slider = h("input", { type: "range", id: "round", min: 0, max: rounds.length - 1, step: 1, value: place, oninput: () => go(+slider.value) });
  body.append(h("label", { class: "grow" }, "Round", h("button", { type: "button", "aria-label": "Round before", onclick: () => go(+slider.value - 1) }, "‹"), slider,
    h("button", { type: "button", "aria-label": "Round after", onclick: () => go(+slider.value + 1) }, "›"), output));
  if (run().gantt_every > 1) body.append(h("span", { class: "note" }, `Every ${run().gantt_every}th round is on this page.`));
}

const lastDrawn = () => { const rounds = roundsWithChart(); return rounds.length ? rounds[rounds.length - 1] : Math.max(0, run().num_rounds - 1); };

// A round of a fleet too large for a row each: how many took part, and what held the last one up.
function crowdSentence(shownRun, r, crowd) {
  const columns = shownRun.rounds, last = columns.straggler[r], cuts = Object.entries(crowd.cuts).map(([cut, count]) => `cut ${cut}: ${whole(count)}`);
  const parts = [`Round ${columns.round[r]} took ${seconds(columns.round_s[r])}`, `${whole(columns.kept[r])} of ${whole(shownRun.num_clients)} clients kept`];
  if (columns.dropped[r].length) parts.push(`${whole(columns.dropped[r].length)} dropped at tau`);
  if (columns.together[r]) parts.push("all finish together");
  if (last !== null) parts.push(`the straggler was client ${last}`);
  if (columns.test_accuracy[r] !== null) parts.push(`test accuracy ${percent(columns.test_accuracy[r])}`);
  return `${parts.join("; ")}. ${cuts.join(", ")}.${columns.why[r] ? ` ${columns.why[r]}` : ""}`;
}

function drawRound() {
  const shownRun = run(), r = chosen.round, model = shownRun.rounds.rows.length && shownRun.rounds.rows[r] ? roundModel(shownRun, r) : null;
  $("gantt").hidden = !model;
  if (!model) {
    const crowd = shownRun.num_rounds ? shownRun.rounds.crowd[r] : null;
    if (crowd) $("round-words").textContent = crowdSentence(shownRun, r, crowd);
    else $("round-words").textContent = shownRun.num_rounds ? "This page holds no timelines of this run; make one of its folder alone." : "No round has ended yet.";
    return drawPlan(shownRun, r, null);
  }
  const columns = shownRun.rounds;
  const parts = [`Round ${columns.round[r]} took ${seconds(columns.round_s[r])}`];
  if (!model.pooled) parts.push(`${columns.kept[r]} of ${shownRun.num_clients} clients kept`);
  if (columns.dropped[r].length) parts.push(`${columns.dropped[r].length} dropped at tau`);
  if (columns.away[r].length) parts.push(`${columns.away[r].length} left out`);
  if (columns.together[r] && !model.pooled) parts.push("all finish together");
  if (columns.straggler[r] !== null && !model.pooled) parts.push(`the straggler was ${nameOf(shownRun.clients, columns.straggler[r])}`);
  const [first] = shownRun.metrics, value = (columns[first.name] || [])[r] ?? null;
  if (value !== null) parts.push(`${first.title} ${metricText(first, value)}`);
  $("round-words").textContent = `${parts.join("; ")}.${columns.why[r] ? ` ${columns.why[r]}` : ""}`;
  gantt = gantt || new Gantt($("gantt"), "Gantt chart");
  gantt.show(model, parts.join("; "));
  drawPlan(shownRun, r, model);
  drawMeasured(shownRun, r, model);
  drawEnding(shownRun, r);
}

function drawRun() {
  drawRoundControls();
  drawRound();
  drawBytes(run());
  drawClients(run());
}

function drawStatus(problem) {
  const live = document.body.dataset.watch === "yes", body = clear($("status"));
  const going = DATA.runs.filter(({ status }) => status === "under way").length;
  if (problem) return body.append(h("span", { class: "alarm" }, problem));
  if (DATA.waiting) return body.append(h("span", { class: "live" }, "● waiting "), `${DATA.waiting}. This page looks again every second.`);
  if (live && going) return body.append(h("span", { class: "live" }, "● following "), `${going} ${going === 1 ? "run" : "runs"} under way`);
  if (DATA.runs.length === 1) body.append(`${DATA.runs[0].folder} · ${STATUS[DATA.runs[0].status] || DATA.runs[0].status}`);
  else if (DATA.runs.length) body.append(`${DATA.runs.length} runs${going ? `, ${going} under way` : ""}`);
}

function drawNav() {
  const nav = clear(document.querySelector("nav"));
  for (const section of document.querySelectorAll("main > section")) {
    if (!section.hidden) nav.append(h("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  }
}

function drawAll() {
  const trained = DATA.runs.length > 0;
  $("title").textContent = document.title = DATA.title;
  for (const id of ["overview", "learning", "detail", "plan", "bytes", "clients"]) $(id).hidden = !trained;
  $("plans").hidden = !DATA.plans.length;
  $("sweep").hidden = !DATA.sweeps.length;
  $("policies").hidden = !DATA.policies.length;
  $("settings").hidden = !trained && !DATA.settings.length;
  drawNav();
  drawStatus();
  drawOverview(DATA);
  fill(clear($("policies-body")), DATA.policies.flatMap(([name, sentence]) => [h("dt", {}, name), h("dd", {}, sentence)]));
  drawSettings(DATA);
  drawPlans(DATA.plans, planCharts);
  drawSweeps(DATA.sweeps);
  if (!trained) return;
  takeStyles(DATA.series);
  drawCurveControls();
  drawCurves();
  drawRun();
}

function redraw() {  // after a change of width
  drawSweeps(DATA.sweeps);
  if (DATA.runs.length) { drawCurves(); drawBytes(run()); }
  for (const chart of [gantt, ...planCharts]) if (chart && chart.model) chart.draw();
}

// ---- following a run

function merged(old, news) {  // rounds that the page has are not sent again
  news.runs.forEach((newRun, i) => {
    if (!newRun.from) return;
    for (const name of Object.keys(newRun.rounds)) newRun.rounds[name] = old.runs[i].rounds[name].slice(0, newRun.from).concat(newRun.rounds[name]);
  });
  return news;
}

async function follow() {
  let version = "";
  for (;;) {
    const have = DATA.runs.map((shownRun) => `${shownRun.gantt_every || 0}:${shownRun.rounds.round.length}`).join(",");
    try {
      const answer = await fetch(`data?version=${encodeURIComponent(version)}&have=${encodeURIComponent(have)}`);
      if (answer.status === 200) {
        const { version: newVersion, data } = await answer.json();
        version = newVersion;
        DATA = merged(DATA, data);
        chosen.run = Math.min(chosen.run, Math.max(0, DATA.runs.length - 1));
        if (DATA.runs.length && (chosen.followed || !run().rounds.rows[chosen.round])) chosen.round = lastDrawn();
        drawAll();
      } else if (answer.status === 204) drawStatus();
      else drawStatus((await answer.text()).slice(0, 300));
    } catch { drawStatus("The server has stopped; this is the last state it sent."); }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

if (DATA.runs.length) chosen.round = lastDrawn();
if (!has("train_loss") && has("test_loss")) chosen.loss = "test_loss";
drawAll();
let lastWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== lastWidth) { lastWidth = innerWidth; redraw(); } });
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details[data-print]")) details.open = true; });
if (document.body.dataset.watch === "yes") follow();
document.body.dataset.ready = "yes";
performance.mark("ready");
