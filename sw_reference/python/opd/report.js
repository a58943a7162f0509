// Draws the plots of report.html from the JSON in #data (layout: opd/report.py, _trace_payload). No dependency but plotly
// and page.js.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NO_RECORD = 255;
  const CLIP = 16;  // bits of headroom at which the heat map ends
  const INK = "#1a2433", MUTED = "#5b6776", GRID = "#e8ecf0";
  const MAX_ABS = "#1f5fa6", LIMIT = "#a61b1b", BASELINE = "#7a8592";
  // Okabe-Ito colours, which colour-blind readers can tell apart, and a symbol of its own for each flag.
  const FLAG_STYLE = {
    Z: ["#56b4e9", "circle"], D2: ["#0072b2", "triangle-down"],
    FORECAST: ["#e69f00", "triangle-up"], CRITICAL: ["#d55e00", "diamond"], JUMP: ["#7b4fa3", "star"],
    SATURATED: ["#009e73", "square"], NONFINITE: ["#111111", "x"], UPSET: ["#cc79a7", "cross"],
  };
  const MODE_FILL = {STABLE: "rgba(230, 159, 0, 0.20)", SAFE: "rgba(200, 30, 30, 0.20)"};
  const MODE_SOLID = {STABLE: "#f8e3b8", SAFE: "#f2c3c1"};
  const FONT = {family: getComputedStyle(document.documentElement).fontFamily, size: 12, color: INK};
  const MARGIN_RIGHT = 96;

  const decode = (text, Type) => new Type(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const finite = x => Number.isFinite(x);
  const log2 = x => (x > 0 && finite(x) ? Math.log2(x) : null);
  const rows = (array, count) => Array.from({length: array.length / count}, (_, i) => array.subarray(i * count, (i + 1) * count));
  const show = x => (x === 0 || (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6) ? String(+x.toPrecision(5)) : x.toExponential(3));
  const shorten = (name, length) => (name.length <= length ? name : name.slice(0, length / 2 - 1) + "\u2026" + name.slice(-length / 2));
  const escape = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"}[c]));  // plotly reads some HTML

  function unpack(trace) {
    const count = trace.step.length;
    for (const [key, Type] of [["max_abs", Float32Array], ["baseline_log2", Float32Array], ["z", Float32Array], ["flags", Uint16Array],
                               ["mode", Uint8Array], ["risk", Uint8Array], ["cause", Uint8Array]]) {
      trace[key] = rows(decode(trace[key], Type), count);
    }
    for (const op in trace.nonfinite) trace.nonfinite[op] = decode(trace.nonfinite[op], Uint32Array);
    for (const name in trace.series) trace.series[name] = decode(trace.series[name], Float32Array);
  }

  const headroom = (trace, op, s) => {
    const magnitude = trace.max_abs[op][s];
    return magnitude > 0 ? Math.log2(trace.probes[op].limit / magnitude) : magnitude === 0 ? Infinity : NaN;
  };
  const axis = extra => ({gridcolor: GRID, zeroline: false, linecolor: "#9aa6b2", ticks: "outside", ticklen: 3,
                          tickcolor: "#9aa6b2", ...extra});
  const range = trace => {
    const first = trace.step[0], last = trace.step[trace.step.length - 1];
    const pad = Math.max(0.5, (last - first) * 0.005);
    return [first - pad, last + pad];
  };

  // Room for the operators' names, the same for both pictures of a trace so that their steps are aligned.
  const LABEL_LENGTH = 30;
  const marginLeft = trace => 24 + 6.2 * Math.min(LABEL_LENGTH, Math.max(12, ...trace.probes.map(p => p.name.length)));

  function drawHeat(div, trace) {
    const ops = trace.probes.map((_, op) => op);
    const values = ops.map(op => Array.from(trace.step, (_, s) => {
      const bits = headroom(trace, op, s);
      return Number.isNaN(bits) ? null : Math.min(CLIP, Math.max(0, bits));
    }));
    const traces = [{
      type: "heatmap", x: trace.step, y: ops, z: values, zmin: 0, zmax: CLIP, hoverongaps: false,
      text: ops.map(op => Array(trace.step.length).fill(escape(trace.probes[op].name))),
      hovertemplate: "%{text}<br>step %{x}: %{z:.1f} bits of headroom<extra></extra>",
      colorscale: [[0, "#7f0000"], [1 / 16, "#b30000"], [2 / 16, "#d7301f"], [4 / 16, "#fc8d59"], [8 / 16, "#fdd49e"], [12 / 16, "#eef2f5"], [1, "#f7f9fb"]],
      colorbar: {title: {text: "headroom<br>(bits)", font: {size: 11}}, thickness: 12, len: 1, y: 0.5, outlinewidth: 0, x: 1.01,
                 tickvals: [0, 1, 2, 4, 8, 12, 16], ticktext: ["0", "1", "2", "4", "8", "12", "\u2265 16"]},
    }];
    if (Object.keys(trace.nonfinite).length > 0) {
      traces.push({
        type: "heatmap", x: trace.step, y: ops, hoverongaps: false, showscale: false, name: "non-finite",
        z: ops.map(op => Array.from(trace.nonfinite[op] || [], n => (n > 0 ? n : null))),
        text: traces[0].text, colorscale: [[0, "#111111"], [1, "#111111"]],
        hovertemplate: "%{text}<br>step %{x}: %{z} non-finite elements<extra></extra>",
      });
      traces.push({type: "scatter", x: [null], y: [null], mode: "markers", name: "non-finite elements",
                   marker: {symbol: "square", size: 10, color: "#111111"}});
    }
    const shifts = [];
    for (const op of ops) {
      let before = 0;
      trace.mode[op].forEach((mode, s) => {
        if (mode === NO_RECORD) return;
        if (before === 0 && mode > 0 && data.causes[trace.cause[op][s]] === "RISK") shifts.push([trace.step[s], op]);
        before = mode;
      });
    }
    traces.push({
      type: "scatter", mode: "markers", name: "warning: FAST to STABLE by risk", x: shifts.map(p => p[0]), y: shifts.map(p => p[1]),
      marker: {symbol: "triangle-right", size: 8, color: MAX_ABS, line: {color: "#fff", width: 1}},
      text: shifts.map(p => escape(trace.probes[p[1]].name)), hovertemplate: "%{text}<br>step %{x}: FAST to STABLE<extra></extra>",
      visible: shifts.length > 0,
    }, {
      type: "scatter", mode: "markers", name: "incident: first non-finite value", x: trace.incidents.map(i => i.step),
      y: trace.incidents.map(i => i.op), marker: {symbol: "x", size: 8, color: "#fff", line: {color: "#111", width: 1.5}},
      text: trace.incidents.map(i => `${escape(i.probe)}<br>step ${i.step}: first non-finite value, lead ${i.lead_steps} steps, in ${i.mode_before}`),
      hovertemplate: "%{text}<extra></extra>", visible: trace.incidents.length > 0,
    });
    const rowsHeight = Math.min(760, Math.max(170, 13 * ops.length)), rowHeight = rowsHeight / ops.length;
    const labelled = ops.filter(op => op % Math.ceil(7.5 / rowHeight) === 0);  // as many names as there is room for
    Plotly.newPlot(div, traces, {
      height: rowsHeight + 86, font: FONT, margin: {l: marginLeft(trace), r: MARGIN_RIGHT, t: 44, b: 42}, hovermode: "closest", dragmode: "zoom",
      plot_bgcolor: "#fff", xaxis: axis({title: {text: "step"}, range: range(trace), showgrid: false}),
      yaxis: axis({range: [ops.length - 0.5, -0.5], showgrid: false, tickfont: {size: rowHeight < 9 ? 8 : 10}, fixedrange: true,
                   tickvals: labelled, ticktext: labelled.map(op => escape(shorten(trace.probes[op].name, LABEL_LENGTH)))}),
      legend: {orientation: "h", x: 0, y: 1, yanchor: "bottom", font: {size: 11}}, showlegend: true,
    }, PLOT_CONFIG);
  }

  // Runs of equal mode as coloured bands; a record's mode is in force until the operator's next record.
  function modeBands(trace, op) {
    const bands = [];
    let open = null;
    trace.mode[op].forEach((mode, s) => {
      if (mode === NO_RECORD) return;
      const name = data.modes[mode];
      if (open && open.name !== name) { bands.push({...open, end: trace.step[s]}); open = null; }
      if (!open && MODE_FILL[name]) open = {name, start: trace.step[s]};
    });
    if (open) bands.push({...open, end: range(trace)[1]});
    return bands;
  }

  function drawDetail(div, trace, op, stepsShown) {
    const probe = trace.probes[op], steps = trace.step;
    const scale = probe.kind === "gradient" && trace.scale_log2 ? trace.scale_log2 : null;
    const limit = Math.log2(probe.limit);
    const flags = trace.flags[op], nonfinite = trace.nonfinite[op] || [];
    const maxAbs = Array.from(trace.max_abs[op], log2);
    const baseline = Array.from(trace.baseline_log2[op], (m, s) => (finite(m) ? m + (scale ? scale[s] : 0) : null));
    const bad = steps.filter((_, s) => nonfinite[s] > 0);
    const lanes = data.flags.filter((name, bit) => FLAG_STYLE[name] && (!["Z", "D2", "UPSET"].includes(name) || flags.some(f => f >> bit & 1)));

    const panels = [{key: "signal", title: "log<sub>2</sub> max |x|", size: 290}, {key: "flags", title: "flags", size: 96},
                    {key: "risk", title: "risk", size: 74}];
    const z = Array.from(trace.z[op], v => (finite(v) ? v : null));
    if (z.some(v => v !== null)) panels.splice(1, 0, {key: "z", title: "z", size: 96});
    if (trace.hints.length > 0) panels.push({key: "hints", title: "", size: 54});
    for (const [key, title] of [["loss", "loss"], ["grad_norm", "grad norm"], ["loss_scale", "log<sub>2</sub> loss<br>scale"]]) {
      if (trace.series[key]) panels.push({key, title, size: 78});
    }
    const GAP = 14, TOP = 44, BOTTOM = 42;
    const inner = panels.reduce((sum, p) => sum + p.size, 0) + GAP * (panels.length - 1);
    const layout = {
      height: inner + TOP + BOTTOM, font: FONT, margin: {l: marginLeft(trace), r: MARGIN_RIGHT, t: TOP, b: BOTTOM}, plot_bgcolor: "#fff",
      hovermode: "x unified", hoversubplots: "axis", dragmode: "zoom", shapes: [], annotations: [],
      legend: {orientation: "h", x: 0, y: 1, yanchor: "bottom", font: {size: 11}},
      xaxis: axis({title: {text: "step"}, range: stepsShown, anchor: "y" + panels.length, showspikes: true, spikemode: "across",
                   spikethickness: 1, spikedash: "solid", spikecolor: "#9aa6b2", hoverformat: "d", unifiedhovertitle: {text: "step %{x}"}}),
    };
    let top = 1;
    const yOf = {};
    panels.forEach((panel, i) => {
      const id = i === 0 ? "y" : "y" + (i + 1), bottom = top - panel.size / inner;
      yOf[panel.key] = id;
      layout["yaxis" + (i === 0 ? "" : i + 1)] =
        axis({domain: [Math.max(0, bottom), top], title: {text: panel.title, standoff: 8, font: {size: 12}}, anchor: "x",
              fixedrange: panel.key !== "signal"});
      top = bottom - GAP / inner;
    });
    const yAxis = key => layout["yaxis" + yOf[key].slice(1)];

    // Signal. The limit is always in the picture: the distance to it is what matters.
    const known = [...maxAbs, ...baseline].filter(v => v !== null);
    const low = known.length ? known.reduce((a, b) => Math.min(a, b)) : limit - 16;
    const pad = (limit - low) * 0.06 + 0.3;
    yAxis("signal").range = [low - pad, limit + pad];
    const line = (key, name, y, style, extra) =>
      ({type: "scatter", mode: "lines", name, x: steps, y, xaxis: "x", yaxis: yOf[key], connectgaps: false, line: style, ...extra});
    const traces = [
      line("signal", "baseline", baseline, {color: BASELINE, width: 1.5, dash: "dot"}, {hovertemplate: "2^%{y:.2f}"}),
      line("signal", "max |x|", maxAbs, {color: MAX_ABS, width: 1.8},
           {customdata: Array.from(trace.max_abs[op], show), hovertemplate: "%{customdata} = 2^%{y:.2f}"}),
      line("signal", `${probe.format} limit ${show(probe.limit)}`, steps.map(() => limit), {color: LIMIT, width: 1.5, dash: "dash"},
           {hoverinfo: "skip"}),
    ];
    if (bad.length > 0) {
      traces.push({type: "scatter", mode: "markers", name: "non-finite elements", x: bad, y: bad.map(() => limit), xaxis: "x", yaxis: yOf.signal,
                   marker: {symbol: "x", size: 6, color: FLAG_STYLE.NONFINITE[0]},
                   customdata: Array.from(nonfinite).filter(n => n > 0), hovertemplate: "%{customdata}"});
    }
    const bands = modeBands(trace, op);
    for (const [name, color] of Object.entries(MODE_SOLID)) {  // legend of the bands
      if (!bands.some(band => band.name === name)) continue;
      traces.push({type: "scatter", mode: "markers", name: `mode ${name}`, x: [null], y: [null], xaxis: "x", yaxis: yOf.signal,
                   marker: {symbol: "square", size: 11, color, line: {color: "#c9a45a", width: 0.5}}, hoverinfo: "skip"});
    }
    const rectangle = (x0, x1, fillcolor, y0, y1, border = {width: 0}) =>
      layout.shapes.push({type: "rect", xref: "x", yref: "paper", x0, x1, y0, y1, fillcolor, line: border, layer: "below"});
    const signalBottom = yAxis("signal").domain[0], riskBottom = yAxis("risk").domain[0];
    if (probe.raw) {
      for (const [first, last] of trace.raw_windows) {
        rectangle(first - 0.5, last + 0.5, "rgba(80, 110, 150, 0.09)", signalBottom, 1,
                  {width: 1, color: "#8a9bb0", dash: "dot"});
        layout.annotations.push({xref: "x", yref: "paper", x: (first + last) / 2, y: signalBottom, yanchor: "bottom", showarrow: false,
                                 text: "raw elements", font: {size: 10, color: MUTED}});
      }
    }
    for (const band of bands) rectangle(band.start, band.end, MODE_FILL[band.name], riskBottom, 1);

    // Flags: one lane each.
    lanes.slice().reverse().forEach((name, lane) => {
      const bit = data.flags.indexOf(name), x = steps.filter((_, s) => flags[s] >> bit & 1);
      const [color, symbol] = FLAG_STYLE[name];
      traces.push({type: "scatter", mode: "markers", name, x, y: x.map(() => lane), xaxis: "x", yaxis: yOf.flags, showlegend: false,
                   marker: {symbol, size: 7, color}, hovertemplate: "raised"});
    });
    Object.assign(yAxis("flags"), {range: [-0.6, lanes.length - 0.4], tickvals: lanes.map((_, i) => i), ticktext: lanes.slice().reverse(),
                                   tickfont: {size: 9}, title: {text: ""}});

    const told = Array.from(trace.mode[op], (mode, s) => {
      if (mode === NO_RECORD) return "no record";
      const cause = data.causes[trace.cause[op][s]];
      return `${trace.risk[op][s]}, mode ${data.modes[mode]}${cause === "NONE" ? "" : ` (${cause})`}`;
    });
    traces.push(line("risk", "risk", Array.from(trace.risk[op], (r, s) => (trace.mode[op][s] === NO_RECORD ? null : r)),
                     {color: INK, width: 1.2, shape: "hvh"},
                     {showlegend: false, fill: "tozeroy", fillcolor: "rgba(26, 36, 51, 0.10)", customdata: told, hovertemplate: "%{customdata}"}));
    if (yOf.z) {
      traces.push(line("z", `z (${data.order})`, z, {color: FLAG_STYLE.D2[0], width: 1.2}, {showlegend: false, hovertemplate: "%{y:.2f}"}),
                  line("z", "Z threshold", steps.map(() => data.z_threshold), {color: LIMIT, width: 1, dash: "dash"},
                       {showlegend: false, hoverinfo: "skip"}));
      const largest = z.reduce((a, b) => Math.max(a, b ?? 0), data.z_threshold);
      Object.assign(yAxis("z"), {range: [Math.max(-10, Math.min(0, ...z.filter(v => v !== null))) - 0.5, largest * 1.1], nticks: 5});
    }
    if (yOf.hints) {  // a bar while the training loop is asked to hold a setting down
      const asked = [["loss_scale", "loss scale"], ["clip_threshold", "clip"], ["learning_rate", "learning rate"]];
      asked.forEach(([key, name], lane) => {
        const x = [], y = [], text = [];
        trace.hints.forEach(({step, factors}, i) => {
          if (factors[key] === 1) return;
          const end = i + 1 < trace.hints.length ? trace.hints[i + 1].step : trace.step[trace.step.length - 1];
          const told = `\u00d7 ${+factors[key].toPrecision(3)}`;
          x.push(step, end, null);
          y.push(2 - lane, 2 - lane, null);
          text.push(told, told, "");
        });
        traces.push({type: "scatter", mode: "lines", name, x, y, text, xaxis: "x", yaxis: yOf.hints, showlegend: false,
                     line: {color: "#7a5195", width: 7}, hovertemplate: "%{text}"});
      });
      Object.assign(yAxis("hints"), {range: [-0.6, 2.6], tickvals: [2, 1, 0], ticktext: asked.map(a => a[1]), tickfont: {size: 9}});
    }
    const thresholds = [...new Set([data.risk_stable, data.risk_safe])];
    Object.assign(yAxis("risk"), {range: [-8, 270], tickvals: [0, ...thresholds]});

    for (const [key, color] of [["loss", "#37424e"], ["grad_norm", "#37424e"], ["loss_scale", "#37424e"]]) {
      const values = trace.series[key];
      if (!values) continue;
      const y = Array.from(values, v => (key === "loss_scale" ? log2(v) : finite(v) ? v : null));
      traces.push(line(key, key.replace("_", " "), y, {color, width: 1.3, shape: key === "loss_scale" ? "hv" : "linear"},
                       {showlegend: false, hovertemplate: key === "loss_scale" ? "2^%{y:.0f}" : "%{y:.4g}"}));
      const lost = steps.filter((_, s) => !finite(values[s]));
      if (lost.length > 0) {
        const known = y.filter(v => v !== null), floor = known.length ? known.reduce((a, b) => Math.min(a, b)) : 0;
        traces.push({type: "scatter", mode: "markers", name: key.replace("_", " "), x: lost, y: lost.map(() => floor), xaxis: "x", yaxis: yOf[key],
                     marker: {symbol: "x", size: 6, color: FLAG_STYLE.NONFINITE[0]}, showlegend: false, hovertemplate: "NaN or Inf"});
      }
      const positive = y.filter(v => v > 0);
      if (key === "grad_norm" && Math.max(...positive) > 20 * Math.min(...positive)) Object.assign(yAxis(key), {type: "log", dtick: 1});
      yAxis(key).nticks = 4;
    }
    Plotly.react(div, traces, layout, PLOT_CONFIG);
  }

  function facts(trace, op) {
    const probe = trace.probes[op];
    let least = Infinity, at = null, alarms = 0, seen = 0;
    trace.step.forEach((step, s) => {
      if (trace.mode[op][s] === NO_RECORD) return;
      ++seen;
      if (trace.risk[op][s] >= data.risk_stable) ++alarms;
      const bits = headroom(trace, op, s);
      if (bits < least) { least = bits; at = step; }
    });
    const incident = trace.incidents.find(i => i.op === op);
    return [`${probe.kind}, ${probe.format} [${probe.shape.join(", ")}]`,
            at === null ? "no finite magnitude" : `least headroom ${least.toFixed(2)} bits at step ${at}`,
            `risk of at least ${data.risk_stable} in ${alarms} of ${seen} records`,
            incident ? `first non-finite value at step ${incident.step}, lead ${incident.lead_steps} steps, in ${incident.mode_before}`
                     : "never non-finite"].join(" \u00b7 ");
  }

  function link(a, b) {  // zoom of one is zoom of the other
    let busy = false;
    const follow = (from, to) => from.on("plotly_relayout", event => {
      if (busy || !Object.keys(event).some(key => key.startsWith("xaxis"))) return;
      busy = true;
      Plotly.relayout(to, {"xaxis.range": from.layout.xaxis.range.slice()}).then(() => { busy = false; });
    });
    follow(a, b);
    follow(b, a);
  }

  for (const section of document.querySelectorAll("section[data-trace]")) {
    const trace = data.traces[Number(section.dataset.trace)];
    unpack(trace);
    const select = section.querySelector("select"), heat = section.querySelector(".heat"), detail = section.querySelector(".detail");
    const draw = op => {
      drawDetail(detail, trace, op, detail.layout ? detail.layout.xaxis.range.slice() : range(trace));
      section.querySelector(".facts").textContent = facts(trace, op);
    };
    select.value = String(trace.default_op);
    drawHeat(heat, trace);
    draw(trace.default_op);
    select.addEventListener("change", () => draw(Number(select.value)));
    heat.on("plotly_click", event => {
      select.value = String(event.points[0].y);
      draw(event.points[0].y);
    });
    link(heat, detail);
  }

  const sampled = document.getElementById("sampled-lead");
  if (sampled) {
    const dashes = ["solid", "dash", "dot", "dashdot"], colors = [MAX_ABS, "#d55e00", "#009e73", "#7b4fa3"];
    Plotly.newPlot(sampled, data.lead_when_sampled.map(({name, leads}, i) => ({
      type: "scatter", mode: "lines+markers+text", name: escape(name), x: leads.map(l => String(l.every)), y: leads.map(l => l.lead_steps),
      text: leads.map(l => l.alarms_per_1000.toFixed(1)), textposition: "top center", textfont: {size: 11},
      line: {color: colors[i % 4], dash: dashes[i % 4], width: 1.8}, marker: {size: 7},
      hovertemplate: "every %{x} steps: lead %{y} steps, %{text} alarms per 1000 samples",
    })), {
      height: 240, font: FONT, margin: {l: 56, r: 16, t: 12, b: 48}, plot_bgcolor: "#fff", showlegend: data.lead_when_sampled.length > 1,
      xaxis: axis({title: {text: "looked at every n-th step, n ="}, type: "category", showgrid: false}),
      yaxis: axis({title: {text: "lead (steps); labels: alarms per 1000"}, range: [0, 150]}),
      legend: {font: {size: 11}},
    }, {...PLOT_CONFIG, displayModeBar: false});
  }

  // Paper cannot unfold the list of incidents.
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.incidents")) details.open = true;
  });
})();
