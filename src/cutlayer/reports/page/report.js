"use strict";

(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false, showTips: false };
  const places = figures.map((figure) => document.getElementById(figure.id));

  const drawn = figures.map((figure, number) => {
    places[number].replaceChildren();
    return Plotly.newPlot(places[number], figure.data, figure.layout, config);
  });
  Promise.all(drawn).then(() => {
    document.documentElement.dataset.plots = "drawn";
  });

  // A plot is as wide as its place was on the screen; paper is narrower, and asks for no new layout by itself.
  const PAPER_WIDTH = 640;
  const folded = Array.from(document.querySelectorAll("details.print-open"));
  let opened = null;

  const toPaper = () => {
    if (opened !== null) return;
    opened = folded.filter((part) => !part.open);
    opened.forEach((part) => { part.open = true; });
    places.forEach((place) => Plotly.relayout(place, { width: PAPER_WIDTH }));
  };
  const toScreen = () => {
    if (opened === null) return;
    opened.forEach((part) => { part.open = false; });
    opened = null;
    places.forEach((place) => Plotly.relayout(place, { width: null, autosize: true }));
  };
  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", toScreen);
  window.matchMedia("print").addEventListener("change", (event) => (event.matches ? toPaper() : toScreen()));
})();
