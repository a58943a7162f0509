// Draws what the vector unit computed from the JSON in #computed (layout: opd/report_compute.py, payload). Follows report.js: an
// operator chosen there is chosen here where it was computed, and the other way round.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("computed").textContent);
  const INK = "#1a2433", MUTED = "#5b6776", GRID = "#e8ecf0", RULE = "#9aa6b2";
  const BANDS = {STABLE: "rgba(230, 159, 0, 0.20)", SAFE: "rgba(200, 30, 30, 0.20)"};
  const COLOURS = {FAST: "#1f5fa6", STABLE: "#f0b64a", SAFE: "#a61b1b"};
  const MARKS = {FAST: "#1f5fa6", STABLE: "#b87400", SAFE: "#a61b1b"};
  // STABLE and SAFE often write the same values: a broad line below, a thin one above.
  const LINES = {
    FAST: {line: {color: COLOURS.FAST, width: 1.8}, marker: {color: COLOURS.FAST, size: 5}},
    STABLE: {line: {color: COLOURS.STABLE, width: 6}, marker: {color: COLOURS.STABLE, size: 9}},
    SAFE: {line: {color: COLOURS.SAFE, width: 1.4, dash: "dash"}, marker: {color: COLOURS.SAFE, size: 4}},
  };
  const ORDER = ["STABLE", "FAST", "SAFE"];  // of drawing
  const FONT = {family: getComputedStyle(document.documentElement).fontFamily, size: 12, color: INK};
  const GAP = 14, TOP = 12, BOTTOM = 42, LEFT = 68, RIGHT = 14;

  const decode = (text, Type) => new Type(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const log2 = x => (x > 0 && Number.isFinite(x) ? Math.log2(x) : null);
  const show = x => (x === 0 || (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6) ? String(+x.toPrecision(5)) : x.toExponential(3));
  const axis = extra => ({gridcolor: GRID, zeroline: false, linecolor: RULE, ticks: "outside", ticklen: 3, tickcolor: RULE, ...extra});
  const least = values => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = values => values.reduce((a, b) => Math.max(a, b), -Infinity);

  // Ticks of a logarithmic axis from 10^low to 10^high: 1, 2, 5 of each decade where there is room, else decades.
  function decades(low, high) {
    const every = Math.ceil((high - low) / 6), first = Math.floor(low), tickvals = [], ticktext = [];
    for (let exponent = first; exponent <= high; exponent += every) {
      for (const digit of high - low < 1.6 ? [1, 2, 5] : [1]) {
        tickvals.push(digit * 10 ** exponent);
        ticktext.push(exponent >= -2 && exponent <= 2 ? String(+(digit * 10 ** exponent).toPrecision(1))
          : `${digit === 1 ? "" : digit + "\u00b7"}10<sup>${exponent}</sup>`);
      }
    }
    return {tickvals, ticktext};
  }

  // Figures of an operator as one array for each mode, decoded when it is first shown.
  function unpack(operator) {
    if (operator.modes) return;
    operator.modes = Array.from(decode(operator.mode, Uint8Array), mode => data.modes[mode]);
    for (const key of ["largest", "accumulator", "relative", "ulps"]) {
      const all = operator[key] === null ? null : decode(operator[key], Float32Array), count = operator.step.length;
      operator[key] = all && Object.fromEntries(data.modes.map((mode, m) => [mode, Array.from(all.subarray(m * count, (m + 1) * count))]));
    }
  }

  function draw(div, operator) {
    unpack(operator);
    const steps = operator.step;
    const spacing = steps.length > 1 ? least(steps.slice(1).map((step, i) => step - steps[i])) : 1;
    const panels = [{key: "outcome", title: "", size: 84}, {key: "largest", title: "log<sub>2</sub> max |output|", size: 220}];
    if (operator.accumulator) panels.push({key: "accumulator", title: "log<sub>2</sub> max<br>|accumulator|", size: 130});
    if (operator.relative) panels.push({key: "relative", title: "relative error", size: 130});
    if (operator.ulps) panels.push({key: "ulps", title: "error (ulp)", size: 100});
    const inner = panels.reduce((sum, panel) => sum + panel.size, 0) + GAP * (panels.length - 1);
    const layout = {
      height: inner + TOP + BOTTOM, font: FONT, margin: {l: LEFT, r: RIGHT, t: TOP, b: BOTTOM}, plot_bgcolor: "#fff", showlegend: false,
      hovermode: "x unified", hoversubplots: "axis", dragmode: "zoom", shapes: [], annotations: [],
      xaxis: axis({title: {text: "step"}, range: [steps[0] - 0.75 * spacing, steps[steps.length - 1] + 0.75 * spacing], anchor: "y" + panels.length,
                   showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: RULE, hoverformat: "d",
                   unifiedhovertitle: {text: "step %{x}"}, tickformat: "d", minallowed: steps[0] - 8 * spacing,
                   maxallowed: steps[steps.length - 1] + 8 * spacing, ...(steps.length < 8 ? {tickvals: steps} : {})}),
    };
    let top = 1;
    const yOf = {};
    panels.forEach((panel, i) => {
      const id = i === 0 ? "y" : "y" + (i + 1), bottom = top - panel.size / inner;
      yOf[panel.key] = id;
      layout["yaxis" + (i === 0 ? "" : i + 1)] = axis({domain: [Math.max(0, bottom), top], title: {text: panel.title, standoff: 6, font: {size: 11}},
                                                       anchor: "x", fixedrange: panel.key !== "largest", nticks: 6});
      top = bottom - GAP / inner;
    });
    const yAxis = key => layout["yaxis" + yOf[key].slice(1)];
    const traces = [];
    const room = (div.clientWidth - LEFT - RIGHT) / ((steps[steps.length - 1] - steps[0]) / spacing + 1);  // pixels of a step
    const ring = Math.max(5, Math.min(16, 0.9 * room));

    // The background is the mode that it was issued in.
    steps.forEach((step, s) => {
      const fill = BANDS[operator.modes[s]];
      if (!fill) return;
      const open = layout.shapes[layout.shapes.length - 1], x0 = step - spacing / 2, x1 = step + spacing / 2;
      if (open && open.fillcolor === fill && open.x1 === x0) open.x1 = x1;
      else layout.shapes.push({type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, fillcolor: fill, line: {width: 0}, layer: "below"});
    });

    // Outcome: a lane for each mode.
    const bad = data.modes.map(() => new Map());
    for (const [mode, s, nonfinite, accumulator, overflow] of operator.bad) bad[mode].set(s, {nonfinite, accumulator, overflow});
    const told = (mode, s) => {
      const found = bad[mode].get(s);
      const parts = found ? [found.overflow ? "overflows" : "operands are not finite"] : ["no overflow"];
      if (found && found.nonfinite) parts.push(`${found.nonfinite} non-finite elements`);
      if (found && found.accumulator) parts.push(`${found.accumulator} non-finite in accumulators`);
      return parts.join(", ") + (operator.modes[s] === data.modes[mode] ? "; this mode ran" : "");
    };
    data.modes.forEach((mode, m) => {
      const over = steps.map((_, s) => Boolean(bad[m].get(s)?.overflow));
      traces.push({
        type: "scatter", mode: "markers", name: mode, x: steps, y: steps.map(() => m), xaxis: "x", yaxis: yOf.outcome,
        marker: {symbol: over.map(o => (o ? "x" : "circle")), size: over.map(o => (o ? Math.max(6, 0.55 * ring) : Math.min(4, 0.6 * room))),
                 color: over.map(o => (o ? "#111111" : MARKS[mode]))},
        customdata: steps.map((_, s) => told(m, s)), hovertemplate: "%{customdata}",
      });
    });
    traces.push({type: "scatter", mode: "markers", x: steps, y: operator.modes.map(mode => data.modes.indexOf(mode)), xaxis: "x", yaxis: yOf.outcome,
                 hoverinfo: "skip", marker: {symbol: "circle-open", size: ring, color: INK, line: {width: 1.3}}});
    Object.assign(yAxis("outcome"), {range: [data.modes.length - 0.4, -0.6], tickvals: data.modes.map((_, m) => m), ticktext: data.modes});

    // Lines do not cross from one window of steps to the next: a point without a value lies between.
    const points = steps.flatMap((step, s) => (steps[s + 1] - step > 2 * spacing ? [s, -1] : [s]));
    const broken = values => points.map(s => (s < 0 ? null : values[s]));
    const curve = (key, mode, y, text, symbols = "circle") => ({
      type: "scatter", mode: "lines+markers", name: mode, x: points.map((s, i) => (s < 0 ? steps[points[i - 1]] + spacing : steps[s])), y: broken(y),
      xaxis: "x", yaxis: yOf[key], connectgaps: false, customdata: broken(text), hovertemplate: "%{customdata}", line: LINES[mode].line,
      marker: {...LINES[mode].marker, symbol: Array.isArray(symbols) ? broken(symbols) : symbols},
    });
    const limitLine = (key, limit, text) => {
      layout.shapes.push({type: "line", xref: "paper", x0: 0, x1: 1, yref: yOf[key], y0: limit, y1: limit,
                          line: {color: INK, width: 1.2, dash: "dot"}});
      layout.annotations.push({xref: "paper", x: 0, xanchor: "left", yref: yOf[key], y: limit, yanchor: "bottom", yshift: 4, showarrow: false, text,
                               font: {size: 10, color: MUTED}, bgcolor: "rgba(255, 255, 255, 0.75)", borderpad: 1});
    };
    // Magnitudes. The limit is always in the picture: the distance to it is what matters.
    const magnitudes = (key, limit, text) => {
      const values = operator[key], drawn = Object.fromEntries(data.modes.map(mode => [mode, values[mode].map(log2)]));
      const known = Object.values(drawn).flat().filter(v => v !== null).concat(limit === null ? [] : [limit]);
      const low = known.length ? least(known) : 0, high = known.length ? most(known) : 1, pad = (high - low) * 0.08 + 0.4;
      yAxis(key).range = [low - pad, high + 2 * pad];
      for (const mode of ORDER) {
        traces.push(curve(key, mode, drawn[mode], values[mode].map(v => `${show(v)} = 2^${Math.log2(v).toFixed(2)}`)));
      }
      if (limit !== null) limitLine(key, limit, text);
      // Where a mode overflows: FAST at its limit, where that is drawn, others at the upper edge.
      const what = key === "largest" ? "nonfinite" : "accumulator";
      data.modes.forEach((mode, m) => {
        const at = steps.map((_, s) => s).filter(s => bad[m].get(s)?.overflow && bad[m].get(s)[what] > 0);
        traces.push({type: "scatter", mode: "markers", name: `${mode} overflows`, x: at.map(s => steps[s]),
                     y: at.map(() => (mode === "FAST" && limit !== null ? limit : high + 1.4 * pad)), xaxis: "x", yaxis: yOf[key],
                     marker: {symbol: "x", size: 8, color: MARKS[mode]}, hoverinfo: "skip"});
      });
    };
    magnitudes("largest", Math.log2(operator.limit), `${operator.format} limit ${show(operator.limit)}`);
    if (operator.accumulator) {
      const near = operator.accumulator_limit;
      magnitudes("accumulator", near === null ? null : Math.log2(near), `${operator.format} limit ${near === null ? "" : show(near)}, of FAST`);
    }

    // Errors, on a logarithmic axis that ends half a decade below the smallest; 0 is drawn there.
    for (const key of ["relative", "ulps"]) {
      if (!operator[key]) continue;
      const positive = Object.values(operator[key]).flat().filter(v => v > 0);
      const low = positive.length ? Math.log10(least(positive)) : -1, high = positive.length ? Math.log10(most(positive)) : 0;
      const zeros = Object.values(operator[key]).some(values => values.includes(0)), floor = low - (zeros ? 0.5 : 0);
      const pad = Math.max(0.2, 0.5 - (high - floor) / 2), range = [floor - pad, high + pad];
      Object.assign(yAxis(key), {type: "log", range, ...decades(...range)});
      for (const mode of ORDER) {
        const values = operator[key][mode];
        const told = values.map(v => show(v) + (key === "ulps" ? " ulp" : ""));
        traces.push(curve(key, mode, values.map(v => (v > 0 ? v : v === 0 ? 10 ** floor : null)), told,
                          values.map(v => (v === 0 ? "circle-open" : "circle"))));
      }
    }
    Plotly.react(div, traces, layout, PLOT_CONFIG);
  }

  for (const section of document.querySelectorAll("section[data-compute]")) {
    const index = section.dataset.compute, trace = data.traces[index];
    if (!trace) continue;
    const operators = new Map(trace.operators.map(operator => [String(operator.op), operator]));
    const select = section.querySelector("select"), div = section.querySelector(".computed");
    const records = document.querySelector(`section[data-trace="${index}"]`);  // the picture of the records above
    const all = records && records.querySelector("select"), detail = records && records.querySelector(".detail");
    const choose = op => {
      const operator = operators.get(op);
      select.value = op;
      draw(div, operator);
      section.querySelector(".answer").textContent = operator.answer;
      section.querySelector(".cost").textContent = operator.cost;
    };
    // Of BF16 outputs the records pass the limit of the operator's own format, where the picture above ends.
    const reach = () => {
      const drawn = detail.data.find(t => t.name === "max |x|"), highest = most(drawn.y.filter(v => v !== null)), range = detail.layout.yaxis.range;
      if (highest > range[1]) Plotly.relayout(detail, {"yaxis.range": [range[0], highest + 0.05 * (highest - range[0])]});
    };
    const follow = () => {
      reach();
      if (operators.has(all.value) && select.value !== all.value) choose(all.value);
    };
    choose(all && operators.has(all.value) ? all.value : String(trace.default_op));
    select.addEventListener("change", () => {
      choose(select.value);
      if (!all) return;
      all.value = select.value;
      all.dispatchEvent(new Event("change"));
    });
    if (all) {
      reach();
      all.addEventListener("change", follow);
      records.querySelector(".heat").on("plotly_click", follow);
    }
  }
})();
