"""The scripts of a page: they draw it, split it for paper, and keep what the reader had set while it reloads itself."""

from __future__ import annotations

DRAW = """
const specification = JSON.parse(document.getElementById("specification").textContent);
const chart = document.getElementById("chart");
const options = {renderer: RENDERER, bind: "#controls", downloadFileName: "timeline",
                 actions: {export: true, source: false, compiled: false, editor: false}};
vegaEmbed(chart, specification, options).then(result => {
  chart.view = result.view;
}).catch(error => {
  document.getElementById("problem").textContent = "The picture could not be drawn: " + error.message;
}).finally(() => chart.dispatchEvent(new Event("settled")));

// A double click is hard on a touch screen, and no keyboard has one.
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || !chart.view) return;
  for (const {name, select} of specification.params ?? [])
    if (select) chart.view.data(name + "_store", []);
  chart.view.runAsync();
});
""".strip()
"""Draws the picture; ``RENDERER`` stands for how."""

PRINT = """
{
  // One picture longer than a sheet would be cut anywhere: on paper each panel is a picture of its own.
  const chart = document.getElementById("chart");
  const cuts = () => {
    const panels = chart.view.scenegraph().root.items[0].items
      .filter(mark => mark.marktype === "group" && mark.role === "scope")
      .map(mark => mark.bounds).sort((a, b) => a.y1 - b.y1);
    const origin = chart.view.origin()[1] + chart.view.padding().top;
    return panels.slice(1).map((panel, i) => origin + (Math.max(panels[i].y2, panels[i].y1) + panel.y1) / 2);
  };
  const piece = (whole, width, top, bottom) => {
    if (whole.tagName === "CANVAS") {
      const part = document.createElement("canvas"), scale = whole.width / width;
      [part.width, part.height] = [whole.width, (bottom - top) * scale];
      part.getContext("2d").drawImage(whole, 0, -top * scale);
      return part;
    }
    const part = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    part.setAttribute("viewBox", [0, top, width, bottom - top].join(" "));
    part.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "use")).setAttribute("href", "#whole");
    return part;
  };
  addEventListener("beforeprint", () => {
    const whole = chart.querySelector("svg.marks, canvas.marks");
    if (!chart.view || !whole || chart.querySelector(".paper")) return;
    const width = whole.viewBox ? whole.viewBox.baseVal.width : whole.clientWidth;
    const height = whole.viewBox ? whole.viewBox.baseVal.height : whole.clientHeight;
    if (whole.viewBox) whole.querySelector("g").id = "whole";
    const edges = [0, ...cuts(), height], paper = document.createElement("div");
    paper.className = "paper";
    edges.slice(1).forEach((bottom, i) => paper.appendChild(piece(whole, width, edges[i], bottom)));
    chart.appendChild(paper);
  });
  addEventListener("afterprint", () => chart.querySelector(".paper")?.remove());
}
""".strip()
"""Splits the picture between its panels for printing."""

KEEP = """
{
  const chart = document.getElementById("chart"), key = "dynamics.plot " + location.pathname;
  const seconds = Number(document.documentElement.dataset.reload ?? 0);
  let kept = null, touched = -Infinity;
  // A browser may forbid storage.
  try { kept = JSON.parse(sessionStorage.getItem(key)); } catch {}
  const place = () => {
    scrollTo({left: kept.scroll[0], top: kept.scroll[1], behavior: "instant"});
    chart.scrollLeft = kept.scroll[2];
  };
  // What the pointer only passes over is not a setting.
  const selects = ({select}) => (select?.type ?? select) === "point" && !/over|move/.test(select.on);
  const settings = () => {
    const found = {};
    for (const parameter of specification.params ?? []) {
      const {name, bind, value, select} = parameter;
      // What was not touched follows the new picture: a slider at the last step, say.
      if (selects(parameter)) found[name] = chart.view.data(name + "_store");
      else if (bind && !select && chart.view.signal(name) !== value) found[name] = chart.view.signal(name);
    }
    return found;
  };
  const restore = () => {
    const text = document.getElementById("specification").textContent;
    for (const parameter of specification.params ?? []) {
      const {name, bind} = parameter, value = kept.settings[name];
      if (value === undefined) continue;
      if (selects(parameter)) {
        // Another run may have other components.
        const known = value.filter(chosen => chosen.values.every(one => text.includes(JSON.stringify(one))));
        chart.view.data(name + "_store", known);
      } else if (bind && !(bind.options && !bind.options.includes(value)) && !(value > bind.max)) {
        chart.view.signal(name, value);
      }
    }
    return chart.view.runAsync();
  };
  if (kept) {
    history.scrollRestoration = "manual";
    // Until the picture is there.
    chart.style.minHeight = kept.height + "px";
    place();
  }
  chart.addEventListener("settled", async () => {
    if (kept && chart.view) {
      await restore();
      chart.style.minHeight = "";
      place();
    }
    chart.dataset.restored = "";
  });
  addEventListener("pagehide", () => {
    if (!chart.view) return;
    const state = {settings: settings(), scroll: [scrollX, scrollY, chart.scrollLeft], height: chart.offsetHeight};
    try { sessionStorage.setItem(key, JSON.stringify(state)); } catch {}
  });
  if (seconds) {
    document.getElementById("watched").textContent =
      "Drawn " + document.lastModified + ". This page reloads itself while the run is watched.";
    for (const type of ["pointermove", "pointerdown", "keydown", "wheel", "scroll", "touchmove"])
      addEventListener(type, () => { touched = performance.now(); }, {capture: true, passive: true});
    // A reader at work is not interrupted; one who has left a tooltip or a menu open is, after a while.
    const reading = () => {
      const quiet = performance.now() - touched;
      const open = document.querySelector(".vg-tooltip.visible, details[open]") || !getSelection().isCollapsed;
      return document.visibilityState !== "visible" || quiet < 3000 || (open && quiet < 30000);
    };
    chart.addEventListener("settled", () => {
      // A picture that takes long to draw is drawn less often.
      const next = performance.now() + Math.max(1000 * seconds, 5 * performance.now());
      setInterval(() => { if (performance.now() > next && !reading()) location.reload(); }, 500);
    });
  }
}
""".strip()
"""Keeps what the reader had set over a reload, and reloads after as many seconds as the page's ``data-reload`` says."""
