// Draws the ROC of evaluation.html from the JSON in #data (layout: opd/evaluate/report.py, _figures). No dependency but plotly
// and page.js.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const axis = extra => ({gridcolor: "#e8ecf0", zeroline: false, linecolor: "#9aa6b2", ticks: "outside", ticklen: 3,
                          tickcolor: "#9aa6b2", ...extra});
  const font = {family: getComputedStyle(document.documentElement).fontFamily, size: 12, color: "#1a2433"};

  // The sweep of a detector, and its published setting as a larger mark on it.
  const draw = line => [
    {x: line.x, y: line.y, text: line.text, name: line.name, legendgroup: line.name, mode: "lines+markers",
     line: {color: line.colour, width: 1.5}, marker: {size: 4, color: line.colour},
     hovertemplate: "%{text}<extra>" + line.name + "</extra>"},
    {x: [line.x[line.published]], y: [line.y[line.published]], legendgroup: line.name, showlegend: false, mode: "markers",
     marker: {size: 11, color: line.colour, symbol: line.symbol, line: {color: "#fff", width: 1}},
     hovertemplate: "published: " + line.text[line.published] + "<extra>" + line.name + "</extra>"},
  ];
  for (const figure of data) {
    Plotly.newPlot(figure.id, figure.lines.flatMap(draw), {
      height: 480, margin: {l: 56, r: 12, t: 36, b: 52}, font, hovermode: "closest",
      plot_bgcolor: "#fff", paper_bgcolor: "#fff",
      xaxis: axis({type: "log", range: [Math.log10(figure.floor) - 0.1, 3.1], exponentformat: "none", dtick: 1,
                   title: {text: "false alarms per 1000 probe-steps, " + figure.runs}}),
      yaxis: axis({range: [-0.04, 1.04], title: {text: "recall"}}), legend: {font: {size: 11}},
    }, PLOT_CONFIG);
  }
  document.documentElement.dataset.drawn = "yes";
})();
