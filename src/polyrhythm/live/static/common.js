"use strict";
// What our live pages share: words for figures, rows that are kept, the theme, the look that is taken again and again.
// Whatever comes from a job or a file is set as text, never as markup.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const byId = (id) => document.getElementById(id);
let chosenTheme = null;

function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(3)).toString();
}

function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value < 0.01) return "0 s";
  if (value < 60) return `${value < 10 ? figure(value) : Math.round(value)} s`;
  const minutes = Math.floor(value / 60), rest = Math.round(value % 60);
  return minutes < 60 ? `${minutes} min ${rest} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${figure(value)} ${units[unit]}`;
}

const brief = (value) => (value >= 1 ? `${figure(value)} s` : `${figure(value < 1e-6 ? 0 : value * 1000)} ms`);
const percent = (value) => `${Math.floor(value * 100)} %`;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Rows and items are kept and changed in place, so that an open page does not grow and focus stays where it is.
function fit(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
}

function element(tag, className) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  return made;
}

// Names and values in a list of terms.
function showTerms(list, rows) {
  fit(list, rows.length, () => {
    const pair = element("div");
    pair.append(element("dt"), element("dd"));
    return pair;
  });
  rows.forEach(([name, value], index) => {
    setText(list.children[index].children[0], name);
    setText(list.children[index].children[1], value);
  });
}

function applyTheme() {
  root.dataset.theme = chosenTheme ?? (system.matches ? "dark" : "light");
  draw();
}

function listenForTheme() {
  byId("theme").addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  addEventListener("resize", draw);
  applyTheme();
}

// Ask for the state now, and again when it says; `take` tells whether to go on, `fail` that nobody has answered.
async function follow(path, take, fail) {
  let pause = 2000, goesOn = true;
  try {
    const response = await fetch(path(), { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(String(response.status));
    const answer = await response.json();
    goesOn = take(answer);
    pause = answer.period_s * 1000;
  } catch {
    goesOn = fail();
  }
  if (goesOn) setTimeout(() => follow(path, take, fail), pause);
}
