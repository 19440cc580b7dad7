// The page of a job: it asks how the job is, shows it, and passes on what the reader wants to be done.
// Whatever comes from the job is set as text, never as markup.

const KEPT_FRAMES = 300;
const STALE_S = 5;
const MOST_REPORTED = 8;
const keptData = byId("kept");
let view = null, looks = [], last = 0, lostSince = null, asking = null;

const sum = (now, name) => now.workers.reduce((total, worker) => total + worker[name], 0);

function policyWords(now) {
  const by = now.chosen ? ` (by ${now.chosen})` : "";
  return now.switching_to ? `${now.policy}${by}, switching to ${now.switching_to}` : `${now.policy}${by}`;
}

function figuresOf(now) {
  const epochs = now.epochs ? ` of ${now.epochs}` : "";
  const dropped = Object.values(now.dropped).reduce((sum, count) => sum + count, 0);
  const drift = now.lssr !== null ? ["LSSR", figure(now.lssr)] : ["staleness", figure(now.staleness)];
  return [
    ["policy", policyWords(now)],
    ["epoch", now.epoch < 0 ? "not begun" : `${now.epoch + 1}${epochs}, ${percent(now.epoch_share)}`],
    ["remaining", seconds(now.remaining_s)],
    ["samples/s", figure(now.samples_per_s)],
    ["loss", figure(now.loss)],
    ...Object.entries(now.figures).map(([name, value]) => [name, figure(value)]),
    drift,
    ["samples", now.samples.toLocaleString("en")],
    ["gradients applied, dropped", `${now.applied.toLocaleString("en")}, ${dropped}`],
    ["phase", String(now.phase)],
    ["workers", `${now.workers.length} of ${now.planned}`],
    ["time", seconds(now.time_s)],
    ["sent, received", `${bytes(sum(now, "sent"))}, ${bytes(sum(now, "received"))}`],
    ...(now.skipped ? [["samples skipped", String(now.skipped)]] : []),
    ...(now.rolled_back ? [["samples rolled back", String(now.rolled_back)]] : []),
    ...(now.repeated ? [["samples made again", String(now.repeated)]] : []),
  ];
}

function showFigures(now) {
  showTerms(byId("figures"), figuresOf(now));
  byId("progress").value = now.share ?? now.epoch_share;
}

function workerRow() {
  const row = element("tr"), head = element("th");
  head.scope = "row";
  row.append(head);
  for (let cell = 0; cell < 11; cell += 1) row.append(element("td"));
  row.children[11].className = "host";
  if (!keptData) {
    const cell = element("td");
    cell.append(...Object.keys(LEAVING).map((how) => leaveButton(row, how)));
    row.append(cell);
  }
  return row;
}

const LEAVING = {
  Drain: ["drain", "It finishes its step, hands its samples back and leaves; the others go on."],
  Kill: ["remove", "Its process ends at once, and the others make its samples again."],
};

function leaveButton(row, how) {
  const button = element("button"), [path, what] = LEAVING[how];
  button.type = "button";
  button.textContent = how;
  button.addEventListener("click", () => {
    const rank = Number(row.dataset.rank);
    confirmed(`${how} rank ${rank}? ${what}`, `${how} it`, () => send(path, { rank }));
  });
  return button;
}

function showWorkers(now) {
  const body = byId("workers").tBodies[0];
  fit(body, now.workers.length, workerRow);
  now.workers.forEach((worker, index) => {
    const row = body.children[index];
    const late = worker.late !== null ? `${worker.straggler}, ${figure(worker.late)}x the median` : worker.straggler ? `${worker.straggler}, on time now` : "";
    const cells = [
      String(worker.rank), worker.activity, String(worker.steps), figure(worker.samples_per_s), brief(worker.compute_s),
      brief(worker.transfer_s), brief(worker.wait_s), `${bytes(worker.sent_per_s)}/s`, `${bytes(worker.received_per_s)}/s`, late, `${figure(worker.heard_s)} s ago`, worker.host || "first host",
    ];
    row.classList.toggle("late", worker.late !== null);
    cells.forEach((text, column) => setText(row.children[column], text));
    row.dataset.rank = String(worker.rank);
    for (const button of row.querySelectorAll("button")) {
      const name = `${button.textContent} rank ${worker.rank}`;
      if (button.ariaLabel !== name) button.ariaLabel = name;
      button.disabled = root.dataset.state !== "running" || (button.textContent === "Drain" && worker.activity === "leaving");
    }
  });
}

function showAdvice(now) {
  const advice = now.advice;
  byId("advice").dataset.fine = String(advice === null || advice.fine);
  setText(byId("verdict"), advice?.verdict ?? "Too little is known yet.");
  setText(byId("why"), advice?.why ?? "");
  setText(byId("next-step"), advice?.next_step ?? "");
}

function showEvents(now) {
  const list = byId("events"), latest = now.events.slice(-100).reverse();
  fit(list, latest.length, () => {
    const item = element("li");
    item.append(element("time"), element("span", "kind"), element("span", "text"));
    return item;
  });
  latest.forEach((event, index) => {
    const [time, kind, text] = list.children[index].children;
    setText(time, seconds(event.time_s));
    setText(kind, event.kind);
    setText(text, event.text);
  });
}

// A chart for each name that the script reports, in the order in which they came.
function reportedCharts(now) {
  const names = Object.keys(now.figures).slice(0, MOST_REPORTED), charts = byId("reported");
  fit(charts, names.length, (index) => {
    const chart = element("figure"), title = element("figcaption"), canvas = element("canvas"), value = element("p");
    title.id = `reported-${index}-title`;
    value.id = `reported-${index}-value`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-labelledby", `${title.id} ${value.id}`);
    chart.append(title, canvas, value);
    return chart;
  });
  names.forEach((name, index) => {
    const [title, canvas, value] = charts.children[index].children;
    setText(title, name);
    setText(value, `now ${figure(now.figures[name])}`);
    drawCurve(canvas, looks, (frame) => frame.figures[name] ?? null);
  });
}

function showCurves(now) {
  const drift = now.lssr !== null ? "lssr" : "staleness";
  setText(byId("drift-title"), drift === "lssr" ? "LSSR: share of steps without an exchange" : "Staleness of gradients");
  for (const [id, name] of [["rate", "samples_per_s"], ["loss", "loss"], ["drift", drift]]) {
    drawCurve(byId(id), looks, (frame) => frame[name]);
    setText(byId(`${id}-value`), now[name] === null ? "not known" : `now ${figure(now[name])}`);
  }
  reportedCharts(now);
}

function condition() {
  if (view === null) return lostSince ? "No answer from the job yet." : "Waiting for the first answer of the job.";
  if (view.ended) return `The job has ended: ${view.ended}. This is how it was last.`;
  if (keptData) return "This is how the job was when the page was kept.";
  if (lostSince) return `No answer since ${lostSince.toLocaleTimeString()}; trying again. This is how the job was last.`;
  return view.epoch < 0 ? "The job is waiting for its workers." : "The job is running.";
}

function show() {
  root.dataset.state = view?.ended ? "ended" : lostSince ? "lost" : view ? "running" : "waiting";
  setText(byId("condition"), condition());
  for (const id of ["switch", "end", "policy"]) if (byId(id)) byId(id).disabled = root.dataset.state !== "running";
  if (view === null) return;
  setText(byId("job"), view.job);
  root.dataset.policy = view.policy;
  showFigures(view);
  showWorkers(view);
  showAdvice(view);
  showEvents(view);
  draw();
}

function draw() {
  if (view === null) return;
  drawTimeline(byId("timeline"), view, looks);
  byId("timeline").setAttribute("aria-label", describeTimeline(view));
  showCurves(view);
}

function take(answer) {
  view = answer.view;
  if (answer.frames.length && answer.frames[0].number !== last + 1) looks = [];
  looks = looks.concat(answer.frames).slice(-KEPT_FRAMES);
  if (looks.length) last = looks[looks.length - 1].number;
}

function look() {
  follow(() => `state?after=${last}`, (answer) => {
    take(answer);
    // The page may be served while the job itself is silent.
    lostSince = answer.age_s > STALE_S ? new Date(Date.now() - answer.age_s * 1000) : null;
    show();
    return !view?.ended;
  }, () => {
    lostSince = lostSince ?? new Date();
    show();
    return !view?.ended;
  });
}

async function send(path, body) {
  let said;
  try {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const text = await response.text();
    said = response.headers.get("content-type")?.startsWith("application/json") ? JSON.parse(text) : { error: text };
  } catch {
    said = { error: "no answer" };
  }
  setText(byId("said"), said.error ? `Not done: ${said.error}` : `Done: ${said.said}.`);
}

function confirmed(question, yes, act) {
  asking = act;
  setText(byId("question"), question);
  setText(byId("yes"), yes);
  byId("ask").showModal();
  byId("no").focus();
}

function askToSwitch() {
  const policy = byId("policy").value.trim();
  if (policy) confirmed(`Switch job ${view.job} from ${view.policy} to ${policy}?`, "Switch", () => send("switch", { policy }));
}

// Specs that begin like what is typed, as in a terminal.
async function complete() {
  try {
    const response = await fetch(`complete?begun=${encodeURIComponent(byId("policy").value.trim())}`);
    const specs = await response.json(), list = byId("policies");
    fit(list, specs.length, () => element("option"));
    specs.forEach((spec, index) => { list.children[index].value = spec; });
  } catch {
    // The next look says that nobody answers.
  }
}

function listen() {
  byId("policy").addEventListener("input", complete);
  byId("switch").addEventListener("click", askToSwitch);
  byId("policy").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // otherwise the same key presses the button that gets the focus
    askToSwitch();
  });
  byId("end").addEventListener("click", () => confirmed(`End job ${view.job} for all its workers?`, "End it", () => send("end", {})));
  byId("no").addEventListener("click", () => byId("ask").close());
  byId("yes").addEventListener("click", () => {
    byId("ask").close();
    asking?.();
    asking = null;
  });
}

if (keptData) {
  const kept = JSON.parse(keptData.textContent);
  view = kept.view;
  looks = kept.frames;
  show();
} else {
  listen();
  look();
}
listenForTheme();
