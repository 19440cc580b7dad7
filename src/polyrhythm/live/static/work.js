// The page of long work: how far it is, what runs now, the best so far, a table and curves.

const keptWork = byId("kept");
let work = null, silent = false;

const remaining = (now) => (now.remaining_s === null ? "not known yet" : `about ${seconds(Math.round(now.remaining_s))}`);

function termsOf(now) {
  const done = now.total === null ? String(now.done) : `${now.done} of ${now.total}`;
  return [
    [now.stage || "done", done],
    ["time", seconds(now.time_s)],
    ["remaining", now.ended ? "-" : remaining(now)],
    ["runs now", now.now || "-"],
    ["best so far", now.best || "-"],
  ];
}

function showTable(now) {
  const table = byId("rows"), latest = now.rows.slice().reverse();
  fit(table.tHead.rows[0], now.heads.length, () => {
    const head = element("th");
    head.scope = "col";
    return head;
  });
  now.heads.forEach((text, column) => setText(table.tHead.rows[0].cells[column], text));
  fit(table.tBodies[0], latest.length, () => {
    const row = element("tr"), head = element("th");
    head.scope = "row";
    row.append(head, ...now.heads.slice(1).map(() => element("td")));
    return row;
  });
  latest.forEach((cells, index) => cells.forEach((text, column) => setText(table.tBodies[0].rows[index].cells[column], text)));
}

function showCurves(now) {
  const names = Object.keys(now.curves), charts = byId("curves");
  fit(charts, names.length, (index) => {
    const chart = element("figure"), title = element("figcaption"), canvas = element("canvas"), value = element("p");
    title.id = `curve-${index}-title`;
    value.id = `curve-${index}-value`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-labelledby", `${title.id} ${value.id}`);
    chart.append(title, canvas, value);
    return chart;
  });
  names.forEach((name, index) => {
    const [title, canvas, value] = charts.children[index].children, points = now.curves[name];
    setText(title, name);
    setText(value, `now ${figure(points[points.length - 1][1])}`);
    drawCurve(canvas, points.map(([x, y]) => ({ time_s: x, y })), (point) => point.y);
  });
}

function condition() {
  if (work === null) return silent ? "No answer yet." : "Waiting for the first answer.";
  if (work.ended) return `It has ended: ${work.ended}. This is how it was last.`;
  if (keptWork) return "This is how it was when the page was kept.";
  return silent ? "No answer; trying again. This is how it was last." : "It goes on.";
}

function draw() {
  if (work !== null) showCurves(work);
}

function show() {
  root.dataset.state = work?.ended ? "ended" : silent ? "lost" : work ? "running" : "waiting";
  setText(byId("condition"), condition());
  if (work === null) return;
  setText(byId("title"), work.title);
  setText(byId("command"), work.command);
  showTerms(byId("figures"), termsOf(work));
  if (work.total) byId("progress").value = work.done / work.total;
  showTable(work);
  draw();
}

if (keptWork) {
  work = JSON.parse(keptWork.textContent).view;
  show();
} else {
  follow(() => "state", (answer) => {
    work = answer.view;
    silent = false;
    show();
    return !work.ended;
  }, () => {
    silent = true;
    show();
    return !work?.ended;
  });
}
listenForTheme();
