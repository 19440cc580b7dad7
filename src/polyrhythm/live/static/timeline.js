// Drawings on canvases: the timeline of the workers and the curves. Nothing here asks or changes anything.

const SHOWN_S = 60;
const MARGIN = 34;

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A canvas in the pixels of the screen, cleared, with its size in those of the page.
function surface(canvas, height) {
  const width = canvas.clientWidth, scale = devicePixelRatio || 1;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  const wide = Math.round(width * scale), high = Math.round(tall * scale);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, tall);
  pen.font = `${0.75 * parseFloat(getComputedStyle(document.body).fontSize)}px system-ui, sans-serif`;
  return { pen, width, height: tall };
}

function laneHeight(count) {
  return Math.max(3, Math.min(26, Math.floor(420 / Math.max(1, count))));
}

function drawTimeline(canvas, view, frames) {
  const ranks = view.workers.map((worker) => worker.rank);
  for (const frame of frames) for (const [rank] of frame.stretches) if (!ranks.includes(rank)) ranks.push(rank);
  ranks.sort((a, b) => a - b);
  const lane = laneHeight(ranks.length), top = 18, gap = lane > 8 ? 2 : lane > 4 ? 1 : 0;
  const { pen, width, height } = surface(canvas, top + ranks.length * lane + 18);
  const end = view.time_s, start = end - SHOWN_S;
  const at = (time) => MARGIN + ((Math.max(time, start) - start) / SHOWN_S) * (width - MARGIN);
  const row = new Map(ranks.map((rank, index) => [rank, top + index * lane]));
  const colours = { compute: colourOf("--compute"), transfer: colourOf("--transfer"), wait: colourOf("--wait") };
  const seen = new Map();
  for (const frame of frames) {
    for (const stretch of frame.stretches) {
      seen.set(stretch[0], stretch[2]);
      if (stretch[2] > start) drawStretch(pen, stretch, at, row.get(stretch[0]), lane - gap, colours);
    }
  }
  for (const worker of view.workers) drawPresent(pen, worker, seen.get(worker.rank), end, at, row.get(worker.rank), lane - gap, colours);
  drawFrame(pen, ranks, row, lane, frames, at, start, end, width, height);
}

// From below: the share of the time in which it computed, transferred, waited.
function drawStretch(pen, [, from, to, compute, transfer], at, y, tall, colours) {
  const x = Math.round(at(from)), wide = Math.max(1, Math.round(at(to)) - x);
  const down = [[compute, colours.compute], [transfer, colours.transfer], [Math.max(0, 1 - compute - transfer), colours.wait]];
  let bottom = y + tall;
  for (const [share, colour] of down) {
    pen.fillStyle = colour;
    pen.fillRect(x, bottom - share * tall, wide, share * tall);
    bottom -= share * tall;
  }
}

// Since its latest step nobody knows more than what it is at.
function drawPresent(pen, worker, since, end, at, y, tall, colours) {
  if (since === undefined || since >= end) return;
  pen.globalAlpha = 0.35;
  pen.fillStyle = worker.activity === "computing" ? colours.compute : colours.wait;
  pen.fillRect(at(since), y, Math.max(0, at(end) - at(since)), tall);
  pen.globalAlpha = 1;
}

function drawFrame(pen, ranks, row, lane, frames, at, start, end, width, height) {
  pen.fillStyle = colourOf("--quiet");
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const every = Math.max(1, Math.ceil(14 / lane));
  ranks.forEach((rank, index) => { if (index % every === 0) pen.fillText(String(rank), MARGIN - 6, row.get(rank) + lane / 2); });
  pen.textAlign = "center";
  for (let ago = 0; ago <= SHOWN_S; ago += 15) {
    const x = Math.min(width - 16, Math.max(MARGIN + 12, at(end - ago)));
    if (end - ago >= 0) pen.fillText(ago ? `-${ago} s` : "now", x, height - 8);
  }
  let policy = null;
  pen.textAlign = "left";
  for (const frame of frames) {
    if (policy !== null && frame.policy !== policy && frame.time_s > start) {
      pen.fillStyle = colourOf("--mark");
      pen.fillRect(at(frame.time_s), 2, 2, height - 18);
      pen.fillText(`to ${frame.policy}`, Math.min(at(frame.time_s) + 5, width - 90), 8);
    }
    policy = frame.policy;
  }
}

// What the timeline shows, for those who do not see it.
function describeTimeline(view) {
  const parts = view.workers.slice(0, 16).map((worker) => {
    const all = worker.compute_s + worker.transfer_s + worker.wait_s;
    const share = (part) => (all > 0 ? Math.round((100 * part) / all) : 0);
    return `worker ${worker.rank} computes ${share(worker.compute_s)} %, transfers ${share(worker.transfer_s)} %, waits ${share(worker.wait_s)} %`;
  });
  const more = view.workers.length > 16 ? `; ${view.workers.length - 16} more in the table` : "";
  return `Timeline of the last ${SHOWN_S} seconds. ${parts.join("; ")}${more}.`;
}

function drawCurve(canvas, frames, valueOf) {
  const { pen, width, height } = surface(canvas, 0);
  const points = frames.map((frame) => [frame.time_s, valueOf(frame)]).filter(([, value]) => value !== null && Number.isFinite(value));
  pen.strokeStyle = colourOf("--line");
  pen.strokeRect(0.5, 0.5, width - 1, height - 1);
  if (points.length < 2) return;
  const values = points.map((point) => point[1]);
  const least = Math.min(...values), most = Math.max(...values);
  // What moves in a narrow range far from 0 would be a straight line.
  const narrow = least > most / 2, low = narrow ? least - (most - least) / 5 : Math.min(0, least);
  const high = Math.max(most, low + 1e-9);
  const first = points[0][0], last = points[points.length - 1][0];
  pen.strokeStyle = colourOf("--compute");
  pen.lineWidth = 2;
  pen.beginPath();
  for (const [time, value] of points) {
    const x = 4 + ((time - first) / Math.max(1e-9, last - first)) * (width - 8);
    pen.lineTo(x, height - 6 - ((value - low) / (high - low)) * (height - 26));
  }
  pen.stroke();
  pen.lineWidth = 1;
  pen.fillStyle = colourOf("--quiet");
  pen.textBaseline = "top";
  pen.fillText(`${figure(high)}`, 6, 4);
  pen.textBaseline = "bottom";
  if (narrow) pen.fillText(`${figure(low)}`, 6, height - 4);
}
