// First script of report.html and evaluation.html: nothing leaves the page. Plotly draws with PLOT_CONFIG.
"use strict";
// Without the button that sends a chart to a server of plotly's maker, and without the address of one.
const PLOT_CONFIG = Object.freeze({
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "sendChartToCloud"],
});
(() => {
  const here = location.href.split("#")[0];
  const stays = url => {
    const target = new URL(url, here);
    return ["blob:", "data:"].includes(target.protocol) || target.href.split("#")[0] === here;  // a saved picture; a part of the page
  };
  Object.defineProperty(window, "open", {value: () => null, writable: false, configurable: false});
  for (const kind of ["click", "auxclick"]) {
    window.addEventListener(kind, event => {
      const link = event.composedPath().find(node => node.localName === "a" && node.href);
      if (link && !stays(link.href.baseVal ?? link.href)) event.preventDefault();
    }, {capture: true});
  }
  if (window.navigation) {
    navigation.addEventListener("navigate", event => {
      if (event.cancelable && !stays(event.destination.url)) event.preventDefault();
    });
  }
})();
