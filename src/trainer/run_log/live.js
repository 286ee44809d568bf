// ---- A run that is followed ----

let moment = {stages: []}, machine = null;
const query = new URLSearchParams(location.search);

// Events of the server from now on. The browser connects again by itself, and says what it has seen; where it gives up,
// because the server has ended or the run is gone, this does so.
function listen(address, handlers) {
  const lost = document.getElementById('lost');
  let source, stopped = false;
  const connect = () => {
    source = new EventSource(address);
    source.onopen = () => lost.textContent = '';
    source.onerror = () => {
      if (stopped) return;
      lost.textContent = `No news since ${new Date().toLocaleTimeString()}: the program behind this page does not answer.`;
      if (source.readyState === EventSource.CLOSED) setTimeout(() => stopped || connect(), 2000);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, event => handle(JSON.parse(event.data)));
    }
  };
  connect();
  return () => {
    stopped = true;
    source.close();
  };
}

// Calls `show` once for all that came, not while nobody looks, and at most a fifth of the time.
function batched(show) {
  let due = false, rest = 100;
  const run = () => {
    if (!due || document.hidden) return;
    const begin = performance.now();
    due = false;
    show();
    rest = Math.max(100, 4 * (performance.now() - begin));
  };
  document.addEventListener('visibilitychange', run);
  return () => {
    if (due) return;
    due = true;
    setTimeout(run, rest);
  };
}

const spliced = (list, from, more) => from === 0 || !list ? more : list.slice(0, from).concat(more);

// The series of a phase with what has changed. Series that had one list of steps go on to have one.
function takePhase(phase, data) {
  Object.assign(phase, {first_step: data.first_step, last_step: data.last_step});
  const shared = new Map();
  for (const s of data.series) {
    const old = phase.all.get(s.tag) || {}, key = `${s.x} ${s.from}`;
    if (!shared.has(key)) shared.set(key, []);
    let steps = shared.get(key).find(entry => entry.of === old.x);
    if (!steps) shared.get(key).push(steps = {of: old.x, list: spliced(old.x, s.from, data.steps[s.x])});
    phase.all.set(s.tag, {tag: s.tag, x: steps.list, y: spliced(old.y, s.from, s.y),
                          ...(s.low ? {low: spliced(old.low, s.from, s.low), high: spliced(old.high, s.from, s.high)} : {}),
                          last: s.last, min: s.min, max: s.max});
  }
}

// What drawTimeline() needs, of spans [lane, step, works, begin, end, rows].
function timelineOf(spans, lanes, leftOut) {
  // Of the first step some are missing.
  const whole = leftOut && spans.length && spans[0][1] !== spans.at(-1)[1] ? spans.filter(s => s[1] !== spans[0][1]) : spans;
  const steps = [], all = [];
  for (const [index, step, works, from, to, rows] of whole) {
    if (!steps.length || steps.at(-1)[0] !== step) steps.push([step, to]);
    steps.at(-1)[1] = Math.max(steps.at(-1)[1], to);
    all.push([index, steps.length - 1, works, from, to, rows]);
  }
  return {lanes, steps, spans: all, left_out: leftOut};
}

const mostSpans = 2000;
let allSpans = [], sampleTexts = new Map(), announced = 0;

function takeRun(data) {
  if (data.reset) {
    run = {phases: [], samples: [], facts: [], timeline: {lanes: [], steps: [], spans: []}};
    phases = [];
    allSpans = [];
    sampleTexts = new Map();
  }
  if (data.head) {
    if (run.state && run.state !== data.head.state) announce(`The run is now ${data.head.state}.`);
    Object.assign(run, {title: data.head.title, config: data.head.config, state: data.head.state,
                        facts: [['state', data.head.state], ...data.head.facts]});
  }
  Object.assign(run, {unreadable: data.unreadable, trouble: data.problem, seconds: data.seconds, read: data.read});
  for (const news of data.phases) {
    let phase = phases.find(({name}) => name === news.name);
    if (!phase) phases.push(phase = {name: news.name, all: new Map()});
    takePhase(phase, news);
  }
  if (data.samples) {
    for (const [key, group] of data.samples.groups) sampleTexts.set(key, group);
    run.samples = data.samples.keys.map(key => sampleTexts.get(key)).filter(group => group?.length);
  }
  if (data.spans.length || data.reset) {
    allSpans = allSpans.concat(data.spans);
    const leftOut = data.left_out || allSpans.length > mostSpans;
    allSpans = allSpans.slice(-mostSpans);
    run.timeline = timelineOf(allSpans, data.lanes, leftOut);
  }
  if (phases.length && Date.now() - announced > 15000) {
    if (announced) announce(`Step ${phases.at(-1).last_step}`);
    announced = Date.now();
  }
}

// ---- What it does at this moment ----

const rowStates = [['waiting', 'var(--rest)'], ['ready', 'var(--c1)'], ['leased', 'var(--c0)'], ['done', 'var(--c2)'],
                   ['quarantined', 'var(--bad)']];

function addStateBar(cell, counts) {
  const all = rowStates.reduce((sum, [name]) => sum + counts[name], 0);
  const bar = add(cell, 'div', {class: 'bar', 'aria-hidden': 'true'});
  for (const [name, look] of rowStates) {
    if (counts[name]) add(bar, 'i', {style: `flex-grow: ${counts[name] / all}; background: ${look}`});
  }
}

function addMoment() {
  if (!moment.stages?.length) {
    if (moment.problem) {
      addHeading('At this moment');
      add(main, 'p', {class: 'note'}, `The run cannot be asked what it does: ${moment.problem}`);
    }
    return;
  }
  addHeading('At this moment');
  const parts = [`Step ${grouped(String(moment.step))}${moment.steps ? ` of ${grouped(String(moment.steps))}` : ''}`,
                 `${moment.phase} for ${duration(moment.phase_seconds)}`, `${counted(moment.rows, 'row')} on the dock`];
  if (moment.tokens_per_second) parts.push(`${number(moment.tokens_per_second)} tokens/s`);
  if (moment.staleness) parts.push(`answers ${number(moment.staleness.mean)} versions old`);
  add(main, 'p', {class: 'moment'}, parts.join(' · '));
  const legend = add(main, 'ul', {class: 'legend'});
  for (const [name, look] of rowStates) {
    const item = add(legend, 'li');
    add(item, 'i', {style: `background: ${look}`});
    item.append(name);
  }
  const columns = ['Stage', 'Does', ...rowStates.map(([name]) => `${name}#`), 'Rows by state', 'Waits for'];
  const body = addTable(main, 'What the stages do', columns);
  body.parentNode.className = 'samples states';
  for (const stage of moment.stages) {
    const row = add(body, 'tr'), does = stage.does === 'works' ? `works${stage.rows ? ` on ${counted(stage.rows, 'row')}` : ''}`
      : stage.does === 'waits' ? 'waits' : '–';
    add(row, 'th', {scope: 'row'}, stage.name + (stage.external ? ' (another process)' : ''));
    add(row, 'td', {'data-name': 'Does'}, does + (stage.does === 'nothing' ? '' : ` for ${duration(stage.seconds)}`));
    for (const [name] of rowStates) {
      const count = stage.counts?.[name];
      add(row, 'td', {class: 'number', 'data-name': name}, count === undefined ? '–' : grouped(String(count)));
    }
    const bar = add(row, 'td', {class: 'wide', 'data-name': 'Rows by state'});
    if (stage.counts) addStateBar(bar, stage.counts);
    add(row, 'td', {'data-name': 'Waits for'}, stage.dock || '–');
  }
}

const gibibytes = bytes => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

function addMeter(list, name, share, text) {
  const item = add(list, 'li');
  add(item, 'span', {}, name);
  add(item, 'b', {}, text);
  const bar = add(item, 'div', {class: 'bar', 'aria-hidden': 'true'});
  add(bar, 'i', {style: `width: ${Math.min(100, 100 * share).toFixed(1)}%; background: var(--${share > .9 ? 'c1' : 'c0'})`});
}

function addMachine() {
  if (!machine) return;
  addHeading('The machine');
  const list = add(main, 'ul', {class: 'meters'}), percent = share => `${Math.round(100 * share)} %`;
  if (machine.cpu !== null) {
    const load = machine.load === null ? '' : `, load ${number(machine.load)}`;
    addMeter(list, 'Processor', machine.cpu, `${percent(machine.cpu)} of ${counted(machine.cores, 'core')}${load}`);
  }
  const memory = (name, used, total) => {
    if (used !== null && total) addMeter(list, name, used / total, `${gibibytes(used)} of ${gibibytes(total)}`);
  };
  memory('Memory', machine.memory, machine.memory_total);
  machine.gpus.forEach((gpu, i) => {
    if (gpu.busy !== null) addMeter(list, `GPU ${i}, ${gpu.name}`, gpu.busy, percent(gpu.busy));
    memory(`Memory of GPU ${i}`, gpu.memory, gpu.memory_total);
  });
}

const showNow = batched(() => {
  render('now', () => {
    addMoment();
    addMachine();
  });
  updateNav();
});

function follow(name, single) {
  if (!single) add(page, 'p', {class: 'back'}).append(add(page, 'a', {href: './'}, 'All runs'));
  for (const part of ['head', 'now']) sectionOf(part);
  let smooth = false;
  const show = batched(() => {
    showRun();
    if (groups.length && !smooth) {
      addSmoothing();
      smooth = true;
    }
    page.setAttribute('aria-busy', run.read < 1);
  });
  listen(`events?run=${encodeURIComponent(name)}`, {
    run: data => { takeRun(data); show(); },
    moment: data => { moment = data; showNow(); },
    machine: data => { machine = data; showNow(); },
  });
}

async function begin() {
  try {
    const answer = await fetch('api/runs', {cache: 'no-store'}), {single, runs} = await answer.json();
    if (single && !runs.length) setTimeout(begin, 500);  // it is about to begin
    else if (single) follow(runs[0].name, true);
    else if (query.has('run')) follow(query.get('run'), false);
    else showAll();
  } catch (error) {
    document.getElementById('lost').textContent = `The program behind this page does not answer: ${error.message}`;
  }
}
