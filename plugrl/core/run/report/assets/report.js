// Draws a report from the JSON in the page. Whatever a model wrote becomes text nodes, never HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs, one = runs.length === 1;
  const main = document.getElementById("report");

  // -- elements ----------------------------------------------------------------------------

  function el(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }
  const label = (text, control) => el("label", {}, text, control);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const runColour = (i) => colour(`--c${i % 8}`);
  const runName = (run) => `${run.experiment} / ${run.id}` + (run.seed === null || run.seed === undefined ? "" : `, seed ${run.seed}`);

  function number(value) {
    if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
    if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
    const size = Math.abs(value);
    return size >= 1e7 || size < 1e-4 ? value.toExponential(3) : Number(value.toPrecision(4)).toString();
  }
  function seconds(s) {
    if (s < 60) return `${number(Number(s.toPrecision(3)))} s`;
    const h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60);
    return h ? `${h} h ${m} min` : `${m} min ${Math.round(s % 60)} s`;
  }
  function table(head, rows) {
    const cell = (tag, value) => el(tag, { class: typeof value === "number" ? "n" : "" },
      value instanceof Node ? value : number(value));
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": head.join(", ") }, el("table", {},
      el("thead", {}, el("tr", {}, head.map((name) => cell("th", name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value) => cell("td", value)))))));
  }
  /** A folded section whose content is made when it is opened first. */
  function folded(title, make, open = false) {
    const node = el("details", {}, el("summary", {}, title));
    let made = false;
    node.addEventListener("toggle", () => {
      if (node.open && !made) { made = true; node.append(make()); }
    });
    node.open = open;
    return node;
  }

  // -- headline ----------------------------------------------------------------------------

  function headlineCards(run) {
    const h = run.headline;
    if (!h) return el("p", { class: "soft" }, "There is no metric by which this run is judged yet.");
    const card = (name, [step, value]) => el("div", { class: "card" },
      el("span", { class: "soft" }, name), el("b", {}, number(value)), el("span", { class: "soft" }, `step ${number(step)}`));
    return [el("h3", {}, `${h.metric}${h.lower ? " (lower is better)" : ""}`),
      el("div", { class: "cards" }, card("first", h.first), card("last", h.last), card("best", h.best))];
  }
  function headline() {
    const parts = one ? headlineCards(runs[0]) : table(
      ["run", "metric", "first", "last", "best", "at step"],
      runs.map((run) => {
        const h = run.headline;
        return h ? [runName(run), h.metric, h.first[1], h.last[1], h.best[1], h.best[0]] : [runName(run), "–", "–", "–", "–", "–"];
      }));
    const notes = runs.flatMap((run) => run.notes.map((note) => el("p", { class: "bad note" }, one ? note : `${runName(run)}: ${note}`)));
    return el("section", { id: "headline" }, parts, notes);
  }
  /** The page of a run that went on says how old it is, and whether a newer one is overdue. */
  function age() {
    const place = document.getElementById("written"), rest = place.querySelector("span");
    if (!rest) return;
    const seen = document.createTextNode("");
    place.replaceChildren(seen, rest);
    const tell = () => {
      const since = Math.max(0, Math.round(Date.now() / 1000 - data.written));
      const late = data.interval !== null && since > 3 * data.interval + 30;
      place.className = late ? "bad" : "";
      seen.data = `Last written ${seconds(since)} ago` + (late ? `, and a page was due every ${seconds(Math.round(data.interval))}. ` : ". ");
    };
    tell();
    setInterval(tell, 1000);
  }

  // -- curves ------------------------------------------------------------------------------

  const charts = [];
  let smoothing = "auto";

  function unit(metric) {
    const name = metric.split("/").pop();
    if (metric.startsWith("time/") && !/_per_/.test(name)) return "seconds";
    if (/tokens_per_second/.test(name)) return "tokens per second";
    if (/per_second/.test(name)) return "per second";
    if (/response_length|prompt_length/.test(name)) return "tokens";
    if (/episode_length/.test(name)) return "steps of an episode";
    if (/return/.test(name)) return "return";
    if (/reward/.test(name)) return "reward";
    if (/accuracy|exact_match|fraction|truncated|invalid$/.test(name)) return "fraction";
    if (/kl|entropy|log_prob/.test(name)) return "nats";
    return name.replace(/_/g, " ");
  }
  function smooth(values, window) {
    const weight = 1 - 1 / window, out = [];
    let mean = 0, norm = 0;
    for (const value of values) {
      mean = weight * mean + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      out.push(mean / norm);
    }
    return out;
  }
  function windowOf(count) {
    if (smoothing === "auto") return count >= 100 ? Math.round(count / 40) : 1;
    return Number(smoothing);
  }

  class Chart {
    constructor(metric, large) {
      this.metric = metric;
      this.height = large ? 300 : 190;
      this.space = el("div", { class: "plot", role: "img", "aria-label": `curve of ${metric}` });
      this.readout = el("div", { class: "facts" }, "\u00a0");
      const facts = runs.map((run) => [run, run.curves.metrics[metric]]).filter(([, c]) => c)
        .map(([run, c]) => el("div", { class: "facts" }, (one ? "" : runName(run) + ": ") +
          `first ${number(c.first[1])}, last ${number(c.last[1])}, smallest ${number(c.min[1])}, largest ${number(c.max[1])}`));
      this.node = el("figure", { class: large ? "chart large" : "chart", "data-metric": metric },
        el("h3", {}, metric), this.space, this.readout, facts);
      this.node.style.margin = "0";
      charts.push(this);
      new ResizeObserver(() => this.resize()).observe(this.node);
    }
    width() { return Math.max(120, Math.floor(this.node.clientWidth - 22)); }
    resize() {
      if (!this.node.clientWidth) return;
      if (!this.plot) this.draw();
      else if (this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: this.height });
    }
    draw() {
      if (this.plot) this.plot.destroy();
      const tables = [], series = [{ label: "step" }], bands = [];
      runs.forEach((run, i) => {
        const curve = run.curves.metrics[this.metric];
        if (!curve) return;
        const x = run.curves.steps[curve.x], ink = runColour(i), window = windowOf(x.length);
        const name = one ? "value" : runName(run), columns = [x];
        const add = (values, options) => { columns.push(values); series.push(options); };
        if (curve.low && runs.length <= 4) {
          bands.push({ series: [series.length, series.length + 1], fill: ink + "22" });
          add(curve.high, { label: `${name}, largest`, stroke: ink + "00", points: { show: false }, spanGaps: true });
          add(curve.low, { label: `${name}, smallest`, stroke: ink + "00", points: { show: false }, spanGaps: true });
        }
        const lone = x.length < 2 ? { show: true, size: 7 } : { show: x.length < 40, size: 4 };
        if (window > 1) {
          add(curve.y, { label: curve.low ? `${name}, mean` : name, stroke: ink + "55", width: 1, points: { show: false }, spanGaps: true });
          add(smooth(curve.y, window), { label: `${name}, smoothed`, stroke: ink, width: 2, points: { show: false }, spanGaps: true });
        } else add(curve.y, { label: name, stroke: ink, width: 2, points: lone, spanGaps: true });
        tables.push(columns);
      });
      const fg = colour("--soft"), grid = { stroke: colour("--line"), width: 1 };
      const options = {
        width: this.width(), height: this.height, series, bands,
        scales: { x: { time: false, range: (u, low, high) => low === high ? [low - 1, high + 1] : [low, high] } },
        axes: [
          { label: "step", labelSize: 20, size: 34, stroke: fg, grid, ticks: grid },
          { label: unit(this.metric), labelSize: 20, size: 58, stroke: fg, grid, ticks: grid,
            values: (u, ticks) => ticks.map(number) },
        ],
        legend: { show: false },
        cursor: { drag: { x: true, y: false } },
        hooks: { draw: [(u) => this.marks(u)], setCursor: [(u) => this.read(u)] },
      };
      this.plot = new uPlot(options, tables.length > 1 ? uPlot.join(tables) : tables[0], this.space);
    }
    /** The values under the pointer. */
    read(u) {
      const i = u.cursor.idx;
      const shown = i === null || i === undefined ? [] : u.series.slice(1)
        .map((each, k) => [each.label, u.data[k + 1][i]]).filter(([, value]) => value !== null && value !== undefined);
      this.readout.textContent = shown.length
        ? `step ${number(u.data[0][i])}: ` + shown.map(([name, value]) => `${name} ${number(value)}`).join(", ") : "\u00a0";
    }
    /** Phases as dashed lines with their names, events as triangles at the bottom. */
    marks(u) {
      const ctx = u.ctx, dpr = devicePixelRatio, { left, top, width, height } = u.bbox;
      ctx.save();
      ctx.font = `${11 * dpr}px system-ui`;
      runs.forEach((run, i) => {
        const place = (step) => {
          const x = u.valToPos(step, "x", true);
          return x >= left && x <= left + width ? x : null;
        };
        if (run.phases.length > 1 || one) {
          ctx.fillStyle = ctx.strokeStyle = one ? colour("--soft") : runColour(i);
          ctx.setLineDash([4 * dpr, 4 * dpr]);
          run.phases.forEach(({ step, name }, k) => {
            // What began before the first point is named at the edge.
            const x = place(step) ?? (u.valToPos(step, "x", true) < left ? left : null);
            if (x === null) return;
            if (x > left) { ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke(); }
            const next = run.phases[k + 1], end = next ? u.valToPos(next.step, "x", true) : left + width;
            if (one && x + ctx.measureText(name).width + 8 * dpr < Math.min(end, left + width)) {
              ctx.textAlign = "left";
              ctx.fillText(name, x + 4 * dpr, top + 11 * dpr);
            }
          });
        }
        ctx.setLineDash([]);
        for (const { step, level } of run.events) {
          const x = place(step);
          if (x === null) continue;
          const size = 5 * dpr, y = top + height;
          ctx.fillStyle = level === "info" ? colour("--accent") : colour("--bad");
          ctx.beginPath(); ctx.moveTo(x, y - 2 * size); ctx.lineTo(x - size, y); ctx.lineTo(x + size, y); ctx.fill();
        }
      });
      ctx.restore();
    }
  }

  const MAIN = [
    /(^|\/)(validation|test)\/(.*\/)?(reward|mean_episode_return|exact_match|accuracy)$/, /(^|\/)rollout\/(.*\/)?(reward|mean_episode_return)$/,
    /(^|\/)train\/(.*\/)?loss$/, /kl/, /mean_episode_length$|rollout\/(.*\/)?response_length$/, /grad_norm$/, /entropy$/,
  ];
  function mainMetrics(names) {
    const chosen = [...new Set(runs.map((run) => run.headline && run.headline.metric).filter(Boolean))];
    for (const pattern of MAIN) {
      if (chosen.some((name) => pattern.test(name))) continue;
      const found = names.find((name) => pattern.test(name) && !chosen.includes(name));
      if (found && chosen.length < 7) chosen.push(found);
    }
    return chosen.length ? chosen : names.slice(0, 4);
  }
  function curves() {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves.metrics)))];
    if (!names.length) return null;
    const first = mainMetrics(names), rest = new Map();
    for (const name of names.filter((n) => !first.includes(n)).sort()) {
      const group = name.includes("/") ? name.split("/")[0] : "other";
      if (!rest.has(group)) rest.set(group, []);
      rest.get(group).push(name);
    }
    const select = el("select", { id: "smoothing", onchange: (event) => {
      smoothing = event.target.value;
      for (const chart of charts) if (chart.plot && chart.node.clientWidth) chart.draw();
    } }, [["auto", "by length"], ["1", "off"], ["5", "5 points"], ["20", "20 points"], ["50", "50 points"]]
      .map(([value, text]) => el("option", { value }, text)));
    const marks = [];
    if (one && runs[0].phases.length) marks.push("dashed lines: phases");
    if (runs.some((run) => run.events.length)) marks.push("triangles: guards and events");
    if (names.some((n) => runs.some((run) => run.curves.metrics[n] && run.curves.metrics[n].low))) marks.push("shade: smallest and largest value");
    return el("section", { id: "curves" }, el("h2", {}, "Curves"),
      el("div", { class: "controls" }, label("smoothing", select), el("span", { class: "soft" }, marks.join(" · "))),
      one ? null : el("div", { class: "key" }, runs.map((run, i) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = `var(--c${i % 8})`;
        return el("span", {}, swatch, runName(run));
      })),
      el("div", { class: "charts" }, first.map((name, i) => new Chart(name, i === 0).node)),
      [...rest].map(([group, metrics]) => folded(`${group} (${metrics.length})`,
        () => el("div", { class: "charts" }, metrics.map((name) => new Chart(name, false).node)))),
      folded("All metrics as a table", () => table(
        ["metric", ...runs.flatMap((run) => { const p = one ? "" : run.id + " "; return [`${p}first`, `${p}last`, `${p}smallest`, `${p}largest`]; })],
        names.sort().map((name) => [name, ...runs.flatMap((run) => {
          const c = run.curves.metrics[name];
          return c ? [c.first[1], c.last[1], c.min[1], c.max[1]] : ["–", "–", "–", "–"];
        })]))));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts) if (chart.plot) chart.draw();
    drawLanes.forEach((draw) => draw());
  });

  // -- time and events ---------------------------------------------------------------------

  const drawLanes = [];
  function lane(slices) {
    const canvas = el("canvas", { width: slices.length * 3, height: 16, role: "img", "aria-label": "busy parts of the time" });
    const draw = () => {
      const ctx = canvas.getContext("2d");
      ctx.clearRect(0, 0, canvas.width, 16);
      ctx.fillStyle = colour("--c0");
      slices.forEach((share, i) => { ctx.globalAlpha = share / 100; ctx.fillRect(i * 3, 0, 3, 16); });
    };
    draw();
    drawLanes.push(draw);
    return canvas;
  }
  function times() {
    const parts = runs.filter((run) => run.time).map((run) => el("section", {},
      one ? null : el("h3", {}, runName(run)),
      el("p", { class: "soft" }, `${seconds(run.time.end)} of work` + (run.time.whole ? "" : ", the newest part of the time line")),
      run.time.lanes.map((each) => el("div", { class: "lane" }, el("span", {}, each.name),
        el("span", {}, `${seconds(each.seconds)}, ${Math.round(100 * each.seconds / run.time.end)} %`), lane(each.slices)))));
    return parts.length ? el("section", { id: "time" }, el("h2", {}, "Time by phase"), parts) : null;
  }
  function events() {
    const rows = runs.flatMap((run) => run.events.map((e) => [...(one ? [] : [run.id]), e.step, e.level, e.text]));
    if (!rows.length) return null;
    return el("section", { id: "events" }, el("h2", {}, "Guards and events"),
      folded(`${rows.length} on the time line`, () => table([...(one ? [] : ["run"]), "step", "level", "what"], rows), rows.length <= 8));
  }

  // -- samples -----------------------------------------------------------------------------

  // A record may be anything: components of others write some, too.
  const objects = (value) => Array.isArray(value) ? value.filter((item) => item !== null && typeof item === "object") : [];
  const tokensOf = (r) => r.tokens && Array.isArray(r.tokens.text) && r.tokens.text.length ? r.tokens : null;
  const reward = (r) => {
    if (typeof r.reward === "number") return r.reward;
    const own = r.rewards && typeof r.rewards === "object" ? Object.values(r.rewards).find((v) => typeof v === "number") : undefined;
    if (own !== undefined) return own;
    const scored = objects(r.exchanges).filter((e) => typeof e.reward === "number");
    return scored.length ? scored[scored.length - 1].reward : null;
  };
  const invalid = (r) => Boolean(r.failure) || objects(r.exchanges).some((e) => e.failure);
  const group = (r) => r.problem === undefined ? (r.category || "") : String(r.problem);
  const asText = (value) => typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  const prompt = (r) => asText(r.prompt !== undefined ? r.prompt : r.question);
  const answer = (r) => asText(r.answer);

  function tint(span, kind, value, scale) {
    if (typeof value !== "number") return;
    if (kind === "mask") span.style.backgroundColor = value ? "rgba(34,139,80,.35)" : "rgba(128,128,128,.25)";
    else if (kind === "advantage") {
      const strength = Math.min(1, Math.abs(value) / (scale || 1)) * .65;
      span.style.backgroundColor = value >= 0 ? `rgba(34,139,80,${strength})` : `rgba(214,64,48,${strength})`;
    } else span.style.backgroundColor = `rgba(230,120,20,${Math.min(1, -value / 5) * .75})`;
    span.title = `${kind} ${number(value)}`;
  }
  /** Runs of trained tokens are the model's, the others came from tools, people or other agents. */
  function tokenBlocks(tokens, kind) {
    const blocks = [], scale = Math.max(0, ...(tokens.advantage || []).map((v) => Math.abs(v || 0)));
    const column = { "log-probability": tokens.logprob, advantage: tokens.advantage, mask: tokens.mask }[kind];
    let own = null, block = null;
    tokens.text.forEach((piece, i) => {
      const trained = tokens.mask ? tokens.mask[i] === 1 : true;
      if (trained !== own) {
        own = trained;
        block = el("div", { class: trained ? "text turn" : "text outside", dir: "auto" });
        blocks.push(trained ? block : el("div", {}, el("span", { class: "soft" }, "from a tool, a person or another agent"), block));
      }
      const span = el("span", { class: "t" }, piece);
      if (column && (trained || kind === "mask")) tint(span, kind, column[i], scale);
      block.append(span);
    });
    return blocks;
  }
  const CALL = /(<tool_call>[\s\S]*?(?:<\/tool_call>|$)|<tool_response>[\s\S]*?(?:<\/tool_response>|$))/;
  function textBlocks(text, kind = "text") {
    return asText(text).split(CALL).filter((part) => part !== "").map((part) => {
      const call = part.startsWith("<tool_call>"), result = part.startsWith("<tool_response>");
      return el("div", { class: call ? "text call" : result ? "text outside" : kind, dir: "auto" },
        call ? el("b", {}, "tool call ") : result ? el("b", {}, "tool result ") : null, part);
    });
  }
  function said(who, text, extra) {
    return el("div", {}, el("b", {}, who), extra ? el("span", { class: "soft" }, ` ${extra}`) : null, textBlocks(text, "text turn"));
  }
  function dialogue(r) {
    const parts = [];
    for (const round of objects(r.rounds)) {
      for (const entry of Array.isArray(round) ? objects(round) : [round]) {
        const says = entry.says === undefined ? entry : entry.says;
        parts.push(said(entry.agent || "agent", says, entry.decides ? `decides: ${entry.decides}` : ""));
        if (entry.reply) parts.push(el("div", {}, el("b", {}, "as sampled"), textBlocks(entry.reply)));
      }
    }
    for (const e of objects(r.exchanges)) {
      parts.push(said("tester", e.probe), said("target", e.response, `score ${number(e.score)}, reward ${number(e.reward)}`));
      if (e.failure) parts.push(el("p", { class: "bad" }, e.failure));
    }
    for (const m of objects(r.messages)) {
      parts.push(said(m.role || "message", m.content || ""));
      for (const call of objects(m.tool_calls)) parts.push(el("div", { class: "text call" }, el("b", {}, "tool call "), JSON.stringify(call.function || call)));
    }
    return parts;
  }
  const SHOWN = new Set(["prompt", "question", "answer", "step"]), PARTS = new Set(["tokens", "rounds", "exchanges", "messages"]);
  function record(r, kind) {
    const facts = Object.entries(r).filter(([name, value]) => !SHOWN.has(name) && !(PARTS.has(name) && typeof value === "object") && value !== "" && value !== null)
      .map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]);
    const who = r.agent ? ` of ${r.agent}` : "";
    const spoken = dialogue(r), tokens = tokensOf(r);
    return el("div", { class: "record" },
      prompt(r) !== "" ? [el("b", {}, "Prompt" + who), textBlocks(prompt(r))] : null,
      spoken,
      tokens && kind !== "none" ? [el("b", {}, "Answer" + who), tokenBlocks(tokens, kind), tokens.text.length < (tokens.count || 0)
        ? el("p", { class: "soft" }, `the first ${tokens.text.length} of ${tokens.count} tokens`) : null]
        : answer(r) !== "" ? [el("b", {}, "Answer" + who), textBlocks(answer(r), "text turn")] : null,
      table(["field", "value"], facts));
  }

  function samples() {
    const all = [];
    runs.forEach((run, i) => Object.entries(run.samples).forEach(([name, file]) => file.records.forEach((r) =>
      all.push({ r, file: one ? name : `${run.id} ${name}`, run: i, search: JSON.stringify([prompt(r), answer(r), r.rounds, r.exchanges, r.messages]).toLowerCase() }))));
    if (!all.length) return null;
    const options = (values) => values.map((value) => el("option", { value }, value === "" ? "all" : value));
    const filters = {}, list = el("div", { class: "list", id: "records", role: "group", "aria-label": "samples" });
    const detail = el("div", { id: "sample" }), count = el("span", { class: "soft", id: "count", role: "status" });
    let kind = "log-probability", current = null, limit = 200;
    const field = (name, control) => {
      filters[name] = control;
      control.id = `filter-${name.replace(/\W+/g, "-")}`;
      control.addEventListener("input", () => { limit = 200; show(); });
      return label(name, control);
    };
    const files = [...new Set(all.map((each) => each.file))];
    const start = files.find((f) => /(^| )rollouts$/.test(f)) || files[0];
    const bound = (name) => { const value = filters[name].value; return value === "" ? null : Number(value); };
    const between = (value, low, high) => (low === null || value !== null && value >= low) && (high === null || value !== null && value <= high);
    const fitting = () => all.filter(({ r, file, search }) =>
      (!filters.file.value || file === filters.file.value)
      && between(r.step, bound("step from"), bound("step to"))
      && between(reward(r), bound("reward from"), bound("reward to"))
      && (!filters.group.value || group(r) === filters.group.value)
      && (!filters.validity.value || invalid(r) === (filters.validity.value === "invalid"))
      && (!filters.text.value || search.includes(filters.text.value.toLowerCase())));
    function show() {
      const found = fitting().reverse();
      count.textContent = `${found.length} of ${all.length} samples`;
      list.replaceChildren(...found.slice(0, limit).map((each) => {
        const { r } = each, value = reward(r);
        const button = el("button", { type: "button", "aria-pressed": String(each === current), onclick: () => choose(each) },
          `step ${number(r.step)} · ${value === null ? "no reward" : "reward " + number(value)}` + (invalid(r) ? " · invalid" : ""),
          el("small", {}, `${r.agent ? r.agent + ": " : ""}${asText(prompt(r)).slice(-60)} → ${asText(answer(r)).slice(0, 60)}`));
        each.button = button;
        return button;
      }), ...(found.length > limit ? [el("button", { type: "button", onclick: () => { limit += 200; show(); } }, `${found.length - limit} more`)] : []));
      if (!current || !found.includes(current)) choose(found[0] || null);
    }
    function choose(each) {
      if (current && current.button) current.button.setAttribute("aria-pressed", "false");
      current = each;
      if (!each) { detail.replaceChildren(el("p", { class: "soft" }, "No sample fits the filters.")); return; }
      if (each.button) each.button.setAttribute("aria-pressed", "true");
      const { r } = each;
      // The trajectories of one attempt, one for each agent, are one dialogue.
      const agents = r.agent ? all.filter((o) => o.file === each.file && o.r.step === r.step && group(o.r) === group(r) && o.r.attempt === r.attempt) : [each];
      const same = prompt(r) === "" ? [] : all.filter((o) => o.file === each.file && prompt(o.r) === prompt(r) && (o.r.agent || "") === (r.agent || ""));
      const steps = new Set(same.map((o) => o.r.step)).size;
      const side = el("div", {});
      detail.replaceChildren(
        el("h3", {}, `Step ${number(r.step)}` + (group(r) ? `, group ${group(r)}` : "")),
        agents.length > 1 ? el("div", { class: "side" }, agents.map((o) => record(o.r, kind))) : record(r, kind),
        el("button", { type: "button", id: "same", disabled: same.length < 2 ? "" : null, onclick: () => {
          side.replaceChildren(el("div", { class: "side", tabindex: 0, role: "region", "aria-label": "the same problem over steps" },
            same.slice(0, 24).map((o) => el("div", {}, el("h3", {}, `step ${number(o.r.step)}, reward ${number(reward(o.r))}`), record(o.r, kind)))));
        } }, same.length < 2 ? "this problem is here once" : `the same problem side by side: ${same.length} attempts in ${steps} steps`),
        side);
    }
    const colours = el("select", { id: "colours", onchange: (event) => { kind = event.target.value; choose(current); } },
      ["log-probability", "advantage", "mask", "none"].map((value) => el("option", { value }, value)));
    const few = runs.flatMap((run) => Object.entries(run.samples).map(([name, f]) => [one ? name : `${run.id} ${name}`, f]))
      .filter(([, f]) => !f.whole || f.records.length < f.read)
      .map(([name, f]) => f.whole ? `${name}: ${f.records.length} of ${f.read}` : `${name}: ${f.records.length} of a long file`);
    const controls = el("div", { class: "controls" },
      field("file", el("select", {}, options(["", ...files]))),
      field("step from", el("input", { type: "number" })), field("step to", el("input", { type: "number" })),
      field("reward from", el("input", { type: "number", step: "any" })), field("reward to", el("input", { type: "number", step: "any" })),
      field("group", el("select", {}, options(["", ...[...new Set(all.map((each) => group(each.r)).filter(Boolean))].sort().slice(0, 1000)]))),
      field("validity", el("select", {}, options(["", "valid", "invalid"]))),
      field("text", el("input", { type: "search" })), label("colour of tokens", colours));
    filters.file.value = start;
    show();
    return el("section", { id: "samples" }, el("h2", {}, "Samples"), controls, count,
      few.length ? el("p", { class: "soft" }, `Of the files in samples/ this page holds records spread over the steps (${few.join(", ")}).`) : null,
      el("div", { class: "browser" }, list, detail));
  }
  function film() {
    const found = one && runs[0].film;
    if (!found) return null;
    const title = el("h2", {}, `Film of step ${number(found.step)}`);
    if (!found.data) return el("section", { id: "film" }, title, el("p", {}, `samples/${found.name} is too long for this page.`));
    const picture = found.media === "video/mp4"
      ? el("video", { src: found.data, controls: "", loop: "" }) : el("img", { src: found.data, alt: "an evaluation episode" });
    return el("section", { id: "film" }, title, picture);
  }

  // -- configuration -----------------------------------------------------------------------

  function configuration() {
    const parts = [];
    if (!one) {
      parts.push(el("h3", {}, "What differs between the runs"), data.differences.length
        ? table(["key", ...runs.map((run) => run.id)], data.differences.map((row) => [row.key, ...row.values]))
        : el("p", { class: "soft" }, "Nothing."));
    }
    for (const run of runs) {
      const changed = run.config.filter((row) => row.was !== undefined), own = [];
      if (run.config_fault) own.push(el("p", { class: "bad" }, run.config_fault));
      if (run.config.length) {
        own.push(el("h3", {}, "What differs from the recipe"), changed.length
          ? table(["key", "its file", "this run", "origin"], changed.map((row) => [row.key, row.was, row.value, row.origin]))
          : el("p", { class: "soft" }, "Nothing."));
        own.push(folded(`Configuration (${run.config.length} values)`,
          () => table(["key", "value", "origin"], run.config.map((row) => [row.key, row.value, row.origin || "default"]))));
      }
      if (run.plugins.length) own.push(folded(`Plugins in use (${run.plugins.length})`, () => table(
        ["kind", "name", "distribution", "version", "target"], run.plugins.map((p) => [p.kind, p.name, p.distribution, p.version, p.target]))));
      const facts = Object.entries(run.environment);
      if (facts.length) own.push(folded("Versions and machine", () => table(["", "value"],
        facts.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]))));
      parts.push(one ? own : folded(runName(run), () => el("div", {}, own)));
    }
    return el("section", { id: "configuration" }, el("h2", {}, "Configuration"), parts);
  }

  const sections = [headline, curves, events, times, film, samples, configuration].map((make) => {
    try {
      return make();
    } catch (error) {
      // The other parts are of use without this one.
      return el("p", { class: "bad" }, `This part of the page could not be drawn: ${error}`);
    }
  });
  main.replaceChildren(...sections.filter(Boolean));
  age();
  document.documentElement.dataset.ready = "yes";
})();
