"use strict";
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const charts = JSON.parse(document.getElementById("charts").textContent);
let chosen = null;

// The figures cannot read style sheets, so the colours of the theme are handed to them.
function themed(layout) {
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const update = {
    "font.color": colour("--front"), "hoverlabel.bgcolor": colour("--raised"), "hoverlabel.font.color": colour("--front"),
    "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": colour("--quiet"), "modebar.activecolor": colour("--front"),
  };
  for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    for (const part of ["gridcolor", "linecolor", "zerolinecolor"]) update[`${axis}.${part}`] = colour("--line");
  }
  return update;
}

function applyTheme() {
  root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
  for (const key of Object.keys(charts)) {
    const figure = document.getElementById(key);
    if (figure.layout) Plotly.relayout(figure, themed(figure.layout));
  }
}

async function draw() {
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  for (const [key, { data, layout }] of Object.entries(charts)) {
    await Plotly.newPlot(key, data, layout, config);
  }
  applyTheme();
  root.dataset.drawn = "yes";
}

document.getElementById("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  applyTheme();
});
system.addEventListener("change", applyTheme);
applyTheme();
draw();
