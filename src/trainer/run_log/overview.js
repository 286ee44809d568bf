// ---- Several runs side by side ----

const chosen = ['val/accuracy', 'val/reward/mean', 'val/loss', 'critic/score/mean', 'train/loss', 'actor/entropy',
                'timing_s/step'];
const mostCharts = 8;
const all = {names: [], runs: new Map(), tags: [], series: new Map(), hidden: new Set(), shown: null};
let stopListening = () => {};

const hue = (i, count) => count <= 8 ? colour(i) : `hsl(${(i * 137.5) % 360} 65% var(--line-lightness))`;

function takeAll(data) {
  all.names = data.names;
  all.tags = data.tags;
  for (const run of data.runs) all.runs.set(run.name, run);
  for (const name of all.runs.keys()) if (!all.names.includes(name)) all.runs.delete(name);
  for (const {run, tag, reset, phases: parts} of data.series) {
    const key = `${tag}\n${run}`, phase = reset || !all.series.has(key) ? new Map() : all.series.get(key);
    all.series.set(key, phase);
    for (const s of parts) {
      const old = phase.get(s.phase) || {};
      phase.set(s.phase, {x: spliced(old.x, s.from, s.x), y: spliced(old.y, s.from, s.y), last: s.last,
                          ...(s.low ? {low: spliced(old.low, s.from, s.low), high: spliced(old.high, s.from, s.high)} : {})});
    }
  }
}

// One line of all phases, whose steps follow each other.
function joinedLine(tag, name, i) {
  const parts = [...(all.series.get(`${tag}\n${name}`)?.values() || [])];
  if (!parts.length) return null;
  const list = of => parts.flatMap(of), ranged = parts.some(s => s.low);
  return {name, run: name, colour: hue(i, all.names.length), dashed: all.names.length <= 16 && i >= 8, x: list(s => s.x),
          y: list(s => s.y), last: parts.at(-1).last,
          ...(ranged ? {spikes: {low: list(s => s.low || s.y), high: list(s => s.high || s.y)}} : {})};
}

const chartOf = tag => ({title: tag, quiet: all.names.length > 8, lines: all.names.map((name, i) =>
  all.hidden.has(name) ? null : joinedLine(tag, name, i)).filter(s => s)});

// The run whose row is pointed at, or has the focus.
function highlight(name) {
  for (const group of groups) {
    group.highlighted = name;
    group.cards.forEach(showHighlight);
  }
}

let rows = new Map();

function addRunRow(body, name, i) {
  const row = add(body, 'tr'), first = add(row, 'td', {class: 'name'});
  const box = add(first, 'input', {type: 'checkbox', 'aria-label': `Curves of ${name}`});
  box.checked = !all.hidden.has(name);
  box.addEventListener('change', () => {
    if (box.checked) all.hidden.delete(name); else all.hidden.add(name);
    showAllCharts();
  });
  add(first, 'i', {class: 'swatch', style: `background: ${hue(i, all.names.length)}`});
  add(first, 'a', {href: `?run=${encodeURIComponent(name)}`}, name);
  for (const event of ['pointerenter', 'focusin']) row.addEventListener(event, () => highlight(name));
  for (const event of ['pointerleave', 'focusout']) row.addEventListener(event, () => highlight(null));
  return row;
}

// Cells of numbers are filled anew; links and boxes stay, with the focus.
function fillRunRow(row, run, tags) {
  while (row.children.length > 1) row.lastChild.remove();
  const count = number => grouped(String(number)), state = run.read < 1 ? `reading, ${Math.floor(100 * run.read)} %` : run.state;
  const step = run.step === null ? '–' : count(run.step) + (run.steps ? ` of ${count(run.steps)}` : '');
  add(row, 'td', {class: `state ${run.state}`, 'data-name': 'State'}, state);
  add(row, 'td', {class: 'number', 'data-name': 'Step'}, step);
  const lastOf = ([at, value], tag) => number(value) + (tag.startsWith('val/') ? ` (step ${count(at)})` : '');
  for (const tag of tags) {
    add(row, 'td', {class: 'number', 'data-name': tag}, run.last[tag] ? lastOf(run.last[tag], tag) : '–');
  }
  const when = new Date(1000 * run.changed).toLocaleString([], {dateStyle: 'short', timeStyle: 'short'});
  add(row, 'td', {class: 'number', 'data-name': 'Last step at'}, run.changed === null ? '–' : when);
}

function showTable() {
  main = sectionOf('runs');
  const tags = chosen.filter(tag => [...all.runs.values()].some(run => run.last[tag]));
  const shape = JSON.stringify([all.names, tags]);
  if (main.dataset.shape !== shape) {
    main.dataset.shape = shape;
    main.replaceChildren();
    add(main, 'h1', {}, all.names.length === 1 ? 'One run' : `${all.names.length} runs`);
    if (!all.names.length) add(main, 'p', {class: 'note'}, 'There are no runs yet; those that begin appear here.');
    const body = addTable(main, 'Runs', ['Run', 'State', 'Step#', ...tags.map(tag => `${tag}#`), 'Last step at#']);
    body.parentNode.className = 'samples runs';
    body.parentNode.parentNode.classList.add('tall');
    rows = new Map(all.names.map((name, i) => [name, addRunRow(body, name, i)]));
  }
  for (const [name, row] of rows) {
    const run = all.runs.get(name), text = JSON.stringify(run);
    if (!run || row.dataset.shown === text) continue;
    row.dataset.shown = text;
    fillRunRow(row, run, tags);
  }
}

function showChoice() {
  main = sectionOf('choice');
  const shape = JSON.stringify(all.tags);
  if (main.dataset.shape === shape || !all.tags.length) return;
  main.dataset.shape = shape;
  const open = main.querySelector('details')?.open;
  main.replaceChildren();
  const folded = addFolded(main, `Which metrics, at most ${mostCharts}`, open ? {open: ''} : {});
  const list = add(folded, 'div', {class: 'choice'});
  for (const tag of all.tags) {
    const label = add(list, 'label'), box = add(label, 'input', {type: 'checkbox'});
    label.append(tag);
    box.checked = all.shown.includes(tag);
    box.addEventListener('change', () => {
      all.shown = box.checked ? [...all.shown, tag] : all.shown.filter(other => other !== tag);
      const dropped = all.shown.length > mostCharts ? all.shown.shift() : null;
      if (dropped) [...list.children].find(other => other.textContent === dropped).firstChild.checked = false;
      listenToAll();
      showAllCharts();
    });
  }
}

function showAllCharts() {
  const charts = (all.shown || []).map(chartOf).filter(chart => chart.lines.length);
  main = sectionOf('curves');
  const shape = JSON.stringify(charts.map(chart => [chart.title, chart.lines.map(s => s.name)]));
  const steps = charts.flatMap(chart => chart.lines.map(s => s.x));
  if (main.dataset.shape === shape) {
    if (!groups.length) return;
    Object.assign(groups[0], extentOf(steps));
    groups[0].cards.forEach((card, i) => {
      Object.assign(card.chart, charts[i]);
      changed(card);
    });
    return;
  }
  main.dataset.shape = shape;
  main.replaceChildren();
  groups.length = 0;
  if (!charts.length) return;
  addHeading('Curves');
  const group = addGroup(steps);
  addGrid(group, charts);
  point(group, null);
}

function listenToAll() {
  stopListening();
  stopListening = listen(`events?tags=${encodeURIComponent((all.shown || []).join(','))}`, {
    runs: data => {
      takeAll(data);
      if (all.shown === null && all.tags.length) {
        all.shown = chosen.filter(tag => all.tags.includes(tag));
        if (!all.shown.length) all.shown = all.tags.filter(tag => !isHidden(tag)).slice(0, 4);
        listenToAll();
      }
      showRuns();
    },
    machine: data => { machine = data; showNow(); },
  });
}

const showRuns = batched(() => {
  showTable();
  showChoice();
  showAllCharts();
  updateNav();
});

function showAll() {
  document.title = 'Runs';
  for (const part of ['runs', 'choice', 'curves', 'now']) sectionOf(part);
  addSmoothing();
  listenToAll();
}
