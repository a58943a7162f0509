// Draws the incident pages of report.html (layout: opd/report_incidents.py, payload): the operator's magnitude before its incident,
// and the learning rates of all parameter groups on a logarithmic axis.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const GRID = "#e8ecf0", INK = "#1a2433", LIMIT = "#a61b1b", MAX_ABS = "#1f5fa6", JUMP = "#d55e00";
  const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7b4fa3", "#37424e", "#d55e00"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const FONT = {family: getComputedStyle(document.documentElement).fontFamily, size: 12, color: INK};
  const decode = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const escape = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"}[c]));
  const axis = extra => ({gridcolor: GRID, zeroline: false, linecolor: "#9aa6b2", ticks: "outside", ticklen: 3, tickcolor: "#9aa6b2", ...extra});

  function draw(div, page) {
    const steps = page.step, traces = [], shapes = [], annotations = [];
    const hasSignal = page.log2 !== undefined, hasRates = page.rates.length > 0;
    if (!hasSignal && !hasRates) { div.remove(); return; }
    const mark = (step, color, dash, label) => {
      if (step === null || step < steps[0] || step > steps[steps.length - 1]) return;
      shapes.push({type: "line", xref: "x", yref: "paper", x0: step, x1: step, y0: 0, y1: 1, line: {color, width: 1.2, dash}});
      annotations.push({xref: "x", yref: "paper", x: step, y: 1, yanchor: "bottom", showarrow: false, text: label, font: {size: 11, color}});
    };
    if (hasSignal) {
      const y = Array.from(decode(page.log2), v => (Number.isFinite(v) ? v : null));
      traces.push({type: "scatter", mode: "lines", name: "log<sub>2</sub> max |x|", x: steps, y, line: {color: MAX_ABS, width: 1.8}, xaxis: "x", yaxis: "y",
                   hovertemplate: "2^%{y:.2f}"},
                  {type: "scatter", mode: "lines", name: `${page.format} limit`, x: [steps[0], steps[steps.length - 1]], y: [page.limit, page.limit],
                   line: {color: LIMIT, width: 1.5, dash: "dash"}, xaxis: "x", yaxis: "y", hoverinfo: "skip"});
      if (page.bad.length > 0) {
        traces.push({type: "scatter", mode: "markers", name: "non-finite or clipped", x: page.bad, y: page.bad.map(() => page.limit), xaxis: "x", yaxis: "y",
                     marker: {symbol: "x", size: 7, color: "#111"}, hoverinfo: "skip"});
      }
    }
    const rateAxis = hasSignal ? "y2" : "y";
    page.rates.forEach((rate, i) => {
      const y = Array.from(decode(rate.lr), v => (v > 0 && Number.isFinite(v) ? v : null));
      traces.push({type: "scatter", mode: "lines", name: escape(`lr, ${rate.name}`), x: steps, y, xaxis: "x", yaxis: rateAxis,
                   line: {color: COLORS[i % COLORS.length], dash: DASHES[Math.floor(i / COLORS.length) % DASHES.length], width: 1.6, shape: "hv"},
                   hovertemplate: "%{y:.3g}"});
      if (page.jump !== null && page.jump.group === i) {
        const at = steps.indexOf(page.jump.step);
        if (at >= 0) {
          traces.push({type: "scatter", mode: "markers", name: "jump", x: [page.jump.step], y: [y[at]], xaxis: "x", yaxis: rateAxis,
                       marker: {symbol: "triangle-up", size: 11, color: JUMP}, hovertemplate: "jump"});
        }
      }
    });
    if (page.since !== null) mark(page.since, "#5b6776", "dot", "since");
    if (page.jump !== null) mark(page.jump.step, JUMP, "dot", "");
    mark(page.incident, LIMIT, "solid", "incident");
    const both = hasSignal && hasRates;
    const layout = {
      height: both ? 370 : 240, font: FONT, margin: {l: 62, r: 12, t: 30, b: 40}, plot_bgcolor: "#fff", hovermode: "x unified", dragmode: "zoom",
      shapes, annotations, showlegend: true, legend: {orientation: "h", x: 0, y: -0.16, yanchor: "top", font: {size: 11}},
      xaxis: axis({title: {text: "step", standoff: 4}, anchor: both ? "y2" : "y", hoverformat: "d"}),
    };
    const lr = axis({title: {text: "learning rate", font: {size: 12}}, type: "log", exponentformat: "power", dtick: 1,
                     domain: both ? [0, 0.32] : [0, 1], anchor: "x"});
    if (hasSignal) layout.yaxis = axis({title: {text: "log<sub>2</sub> max |x|", font: {size: 12}}, domain: both ? [0.4, 1] : [0, 1], anchor: "x"});
    if (hasRates) layout[hasSignal ? "yaxis2" : "yaxis"] = lr;
    Plotly.newPlot(div, traces, layout, {...PLOT_CONFIG, displayModeBar: false});
  }

  for (const section of document.querySelectorAll("section[data-incident]")) {
    const [trace, page] = section.dataset.incident.split(":").map(Number);
    draw(section.querySelector(".around"), data.traces[trace].incident_pages[page]);
  }
})();
