// ---- The timeline: a lane for each stage ----

// Of {lanes, steps, spans}: the spans of the last `count` steps, [lane, step, works, begin, end, rows].
const spansOf = (timeline, count) =>
  timeline.spans.filter(([, step]) => step >= timeline.steps.length - count);

// The stages of a step have the colours that they have among the times of steps, whatever else has a lane.
function laneColour(timeline, index) {
  const last = ['validation', 'step'], rank = name => last.indexOf(name) + 1;
  const order = [...timeline.lanes].sort((a, b) => rank(a) - rank(b));
  return colour(order.indexOf(timeline.lanes[index]));
}

// Seconds that are shown, [begin, end].
function timeRange(spans) {
  return [Math.min(...spans.map(span => span[3])), Math.max(...spans.map(span => span[4]))];
}

const lane = {height: 26, gap: 6, top: 22, bottom: 22};

// Seconds as they are written on an axis from 0 on.
function clockText(seconds, step) {
  if (step < 1) return `${seconds.toFixed(Math.ceil(-Math.log10(step)))} s`;
  const whole = Math.round(seconds), two = n => String(n).padStart(2, '0');
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours}:${two(minutes % 60)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// Marks that are easy to read: seconds, minutes or hours.
function timeTicks(begin, end, count) {
  const raw = (end - begin) / count, minute = 60, hour = 3600;
  const steps = [.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, minute, 2 * minute, 5 * minute,
    10 * minute, 20 * minute, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour, 24 * hour];
  const step = steps.find(s => s >= raw) || 24 * hour * Math.ceil(raw / (24 * hour));
  const all = [];
  for (let i = Math.ceil(begin / step - 1e-9); i * step <= end; ++i) all.push({at: i * step, text: clockText(i * step, step)});
  return all;
}

function drawTimeline(svg, timeline, spans) {
  const width = svg.clientWidth;
  if (!width) return;
  const used = timeline.lanes.map((name, i) => ({name, i})).filter(({i}) => spans.some(span => span[0] === i));
  const row = new Map(used.map(({i}, k) => [i, k])), [begin, end] = timeRange(spans);
  const height = lane.top + lane.bottom + used.length * (lane.height + lane.gap);
  svg.replaceChildren();
  svg.setAttribute('height', height);
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const x0 = 14 + 6.3 * Math.max(...used.map(({name}) => name.length)), x1 = width - 12;
  const x = second => x0 + (second - begin) / (end - begin || 1) * (x1 - x0);
  const y = k => lane.top + k * (lane.height + lane.gap), bottom = height - lane.bottom;
  for (const {at, text} of timeTicks(begin, end, Math.max(2, (x1 - x0) / 90))) {
    add(svg, 'line', {x1: x(at), x2: x(at), y1: lane.top, y2: bottom, stroke: 'var(--grid)'});
    add(svg, 'text', {x: x(at).toFixed(1), y: height - 6, 'text-anchor': 'middle'}, text);
  }
  used.forEach(({name}, k) => {
    add(svg, 'text', {x: x0 - 8, y: y(k) + lane.height / 2, dy: '.33em', 'text-anchor': 'end'}, name);
  });
  for (const [index, step, works, from, to, rows] of spans) {
    const k = row.get(index), inset = works ? 0 : lane.height * .36;
    const bar = add(svg, 'rect', {
      x: x(from).toFixed(2), width: Math.max(x(to) - x(from), works ? .8 : .3).toFixed(2), y: y(k) + inset,
      height: lane.height - 2 * inset, fill: works ? laneColour(timeline, index) : 'var(--rest)', rx: x(to) - x(from) > 8 ? 2 : 0});
    const what = works ? `works${rows ? ` on ${counted(rows, 'row')}` : ''}` : 'waits';
    add(bar, 'title', {}, `${timeline.lanes[index]} ${what} for ${duration(to - from)}, from ` +
      `${clockText(from, .01)} on, step ${timeline.steps[step][0]}`);
  }
  let free = -Infinity;  // of the marks' names
  for (const step of new Set(spans.map(span => span[1]))) {
    const [number, at] = timeline.steps[step], text = grouped(String(number)), half = 4 * text.length;
    add(svg, 'line', {x1: x(at), x2: x(at), y1: lane.top - 4, y2: bottom, stroke: 'var(--dim)', 'stroke-dasharray': '2 3',
                      'pointer-events': 'none'});
    if (x(at) - half < free) continue;
    free = x(at) + half + 6;
    add(svg, 'text', {x: x(at).toFixed(1), y: lane.top - 9, 'text-anchor': 'middle'}, text);
  }
}

// What each stage did in the time that is shown.
function addStageTable(parent, timeline, spans) {
  const [begin, end] = timeRange(spans), seconds = end - begin || 1;
  const body = addTable(parent, 'Times of the stages', ['Stage', 'Working#', 'Waiting#', 'Neither#', 'Rows#', 'Rows/s at work#']);
  timeline.lanes.forEach((name, i) => {
    const own = spans.filter(span => span[0] === i), row = own.length ? add(body, 'tr') : null;
    if (!row) return;
    const sum = (list, of) => list.reduce((total, span) => total + of(span), 0), length = span => span[4] - span[3];
    const working = sum(own.filter(span => span[2]), length), waiting = sum(own.filter(span => !span[2]), length);
    const rows = sum(own, span => span[5]), cell = text => add(row, 'td', {class: 'number'}, text);
    const share = part => `${(100 * part / seconds).toFixed(100 * part / seconds < 10 ? 1 : 0)} %`;
    const title = add(row, 'td', {class: 'name'});
    add(title, 'i', {class: 'swatch', style: `background: ${laneColour(timeline, i)}`});
    title.append(name);
    cell(share(working));
    cell(waiting ? share(waiting) : '–');
    cell(share(Math.max(0, seconds - working - waiting)));
    cell(rows ? grouped(String(rows)) : '–');
    cell(rows && working ? number(rows / working) : '–');
  });
}

// The last `few` steps, and all that the page has at the press of a button.
function addStageTimeline(timeline, few = 20) {
  addHeading('What the stages did when');
  const box = add(main, 'div', {class: 'card'}), header = add(box, 'header'), title = add(header, 'span');
  const legend = add(box, 'ul', {class: 'legend'}), svg = add(box, 'svg', {role: 'img', 'aria-label': 'Timeline of the stages'});
  for (const [name, look] of [['works, each stage in its colour', 'var(--c0)'], ['waits for rows', 'var(--rest)']]) {
    const item = add(legend, 'li');
    add(item, 'i', {style: `background: ${look}`});
    item.append(name);
  }
  add(legend, 'li', {}, 'dotted: the end of a step');
  const table = add(main, 'div', {class: 'below'});
  let spans, whole = false;
  const button = add(header, 'button', {type: 'button', 'aria-pressed': 'false'});
  const leftOut = add(box, 'p', {class: 'note'});
  const show = () => {
    const all = timeline.steps.length, count = whole ? all : Math.min(few, all);
    button.hidden = all <= few;
    button.textContent = `all ${all} steps`;
    leftOut.hidden = !timeline.left_out;
    leftOut.textContent = `Steps before ${grouped(String(timeline.steps[0][0]))} are in timeline.jsonl only.`;
    spans = spansOf(timeline, count);
    const [first, last] = [timeline.steps.at(-count)[0], timeline.steps.at(-1)[0]].map(step => grouped(String(step)));
    title.textContent = first === last ? `Step ${last}` : `Steps ${first} to ${last}`;
    drawTimeline(svg, timeline, spans);
    table.replaceChildren();
    addStageTable(table, timeline, spans);
  };
  button.addEventListener('click', () => {
    whole = !whole;
    button.setAttribute('aria-pressed', whole);
    show();
  });
  show();
  let drawn = svg.clientWidth;
  new ResizeObserver(() => {
    if (svg.clientWidth === drawn) return;
    drawn = svg.clientWidth;
    drawTimeline(svg, timeline, spans);
  }).observe(svg);
  const update = newer => {
    if (newer === timeline) return;
    timeline = newer;
    show();
  };
  return {update};
}
