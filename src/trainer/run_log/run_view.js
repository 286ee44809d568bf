// ---- What goes on which chart ----

const phaseNames = {sft: 'Supervised fine-tuning', grpo: 'GRPO'};
const phaseName = name => phaseNames[name] || name || 'Run';

// Those that have threads of their own.
const waiting = ['rollout', 'reward', 'ref', 'values', 'old_log_prob', 'advantage', 'critic', 'actor'];
// Lines are [tag, name]; a band is [tag of the lower edge, tag of the upper edge].
const known = [
  {title: 'Accuracy', share: true, size: 'big',
   lines: [['val/accuracy', 'validation']]},
  {title: 'Reward', lines: [['critic/score/mean', 'mean']], band: ['critic/score/min', 'critic/score/max']},
  {title: 'Loss', lines: [['train/loss', 'training'], ['val/loss', 'validation']]},
  {title: 'KL to the reference', lines: [['actor/kl_loss', 'per token']]},
  {title: 'Entropy', lines: [['actor/entropy', 'per token']]},
  {title: 'Response length', lines: [['response_length/mean', 'mean tokens']],
   band: ['response_length/min', 'response_length/max']},
  {title: 'Policy loss', lines: [['actor/pg_loss', 'actor']]},
  {title: 'KL to the sampling policy', lines: [['actor/ppo_kl', 'per token']]},
  {title: 'Clipped fraction', lines: [['actor/pg_clipfrac', 'of tokens']]},
  {title: 'Gradient norm', lines: [['actor/grad_norm', 'before clipping'], ['train/grad_norm', 'before clipping']]},
  {title: 'Learning rate', lines: [['actor/lr', 'actor'], ['train/lr', 'rate']]},
  {title: 'Prompt length', lines: [['prompt_length/mean', 'mean tokens']],
   band: ['prompt_length/min', 'prompt_length/max']},
  {title: 'Advantages', lines: [['critic/advantages/mean', 'mean']],
   band: ['critic/advantages/min', 'critic/advantages/max']},
  {title: 'Tokens per second', lines: [['perf/throughput', 'of a step']]},
  {title: 'Tokens per step', lines: [['perf/total_num_tokens', 'tokens']]},
  {title: 'Staleness of the answers', lines: [['async/staleness/mean', 'mean versions']],
   band: ['async/staleness/min', 'async/staleness/max']},
  {title: 'Idle share of stages', lines: waiting.map(stage => [`perf/idle_share/${stage}`, stage])},
  {title: 'Seconds that stages waited', lines: waiting.map(stage => [`perf/waited_s/${stage}`, stage])},
  {title: 'Rollout mismatch: log-probabilities', lines: [
    ['rollout_corr/mean_abs_diff', 'mean difference'], ['rollout_corr/max_abs_diff', 'greatest']]},
  {title: 'Rollout mismatch: KL', lines: [['rollout_corr/kl', 'k1, per token'], ['rollout_corr/k3_kl', 'k3, per token']]},
  {title: 'Rollout mismatch: χ²', lines: [['rollout_corr/chi2_token', 'tokens'], ['rollout_corr/chi2_seq', 'sequences']]},
  {title: 'Rollout mismatch: perplexity', lines: [
    ['rollout_corr/training_ppl', 'trainer'], ['rollout_corr/rollout_ppl', 'rollout']]},
  {title: 'Rollout mismatch: log-perplexity', lines: [
    ['rollout_corr/training_log_ppl', 'trainer'], ['rollout_corr/rollout_log_ppl', 'rollout']]},
  {title: 'Rollout mismatch: difference of log-perplexities', lines: [['rollout_corr/log_ppl_diff', 'mean']],
   band: ['rollout_corr/log_ppl_diff_min', 'rollout_corr/log_ppl_diff_max']},
  {title: 'Rollout mismatch: its size in log-perplexity', lines: [['rollout_corr/log_ppl_abs_diff', 'mean']]},
  {title: 'Rollout mismatch: ratio of perplexities', lines: [['rollout_corr/ppl_ratio', 'mean']]},
  {title: 'Importance weights', lines: [['rollout_corr/rollout_is_mean', 'mean']],
   band: ['rollout_corr/rollout_is_min', 'rollout_corr/rollout_is_max']},
  {title: 'Importance weights beyond the cap', lines: [
    ['rollout_corr/rollout_is_ratio_fraction_high', 'above it'],
    ['rollout_corr/rollout_is_ratio_fraction_low', 'below its inverse']]},
  {title: 'Effective share of samples', lines: [['rollout_corr/rollout_is_eff_sample_size', 'after weighting']]},
  {title: 'Share of the peak', lines: [
    ['perf/mfu/step', 'step'], ['perf/mfu/rollout', 'rollout'], ['perf/mfu/ref', 'ref'],
    ['perf/mfu/old_log_prob', 'old_log_prob'], ['perf/mfu/actor', 'actor']]},
  {title: 'Memory of the process, in GiB', lines: [
    ['perf/cpu_memory_used_gb', 'step'], ['perf/cpu_memory_used_gb/rollout', 'rollout'],
    ['perf/cpu_memory_used_gb/reward', 'reward'], ['perf/cpu_memory_used_gb/ref', 'ref'],
    ['perf/cpu_memory_used_gb/old_log_prob', 'old_log_prob'], ['perf/cpu_memory_used_gb/advantage', 'advantage'],
    ['perf/cpu_memory_used_gb/actor', 'actor'], ['perf/cpu_memory_used_gb/testing', 'validation']]},
];
const stageOrder = ['rollout', 'reward', 'dynamic_sampling', 'baseline', 'ref', 'old_log_prob', 'advantage', 'actor',
                    'testing'];
// A series with its steps: {tag, x, y, low, high, last, min, max}.
const metricsOf = phase => new Map(phase.series.map(s => [s.tag, {...s, x: phase.steps[s.x]}]));

// {charts, others, constants}: what stands at the top, what below, and the series that never change.
function chartsOf(all) {
  const left = new Set([...all.keys()].filter(tag => !isHidden(tag)));
  const charts = [];
  const line = (tag, name, index, band = []) => {
    const [low, high] = band.map(edge => all.get(edge));
    [tag, ...band].forEach(t => left.delete(t));
    // Edges that never move, such as 0 and 1 of a reward for right and wrong, would only colour the whole chart.
    const banded = low && high && low.x === all.get(tag).x && high.x === low.x && (moves(low) || moves(high));
    const edges = banded ? {low: low.low || low.y, high: high.high || high.y} : {};
    return {...all.get(tag), name, colour: colour(index), ...edges};
  };
  const isShare = tag => { const s = all.get(tag); return s.max && s.min[1] >= 0 && s.max[1] <= 1; };
  for (const spec of known) {
    const lines = spec.lines.filter(([tag]) => left.has(tag));
    const share = spec.share && lines.every(([tag]) => isShare(tag));
    if (!lines.length) continue;
    charts.push({...spec, share, lines: lines.map(([tag, name], i) => line(tag, name, i, spec.band))});
  }
  [...left].filter(tag => tag.startsWith('timing_s/')).forEach(tag => left.delete(tag));
  charts.push(...otherCharts(left, line).map(chart => ({...chart, other: true})));
  const shown = charts.filter(chart => chart.lines.some(moves));
  const constants = charts.filter(chart => !shown.includes(chart)).flatMap(chart => chart.lines);
  return {charts: shown.filter(chart => !chart.other), others: shown.filter(chart => chart.other), constants};
}

// What is not known, in the order of names, so that what shares a prefix stands together; mean, min and max of one thing
// share a chart.
function otherCharts(left, line) {
  const charts = [];
  for (const tag of [...left].sort()) {
    if (!left.has(tag)) continue;
    const base = tag.replace(/\/(mean|min|max)$/, ''), mean = base + '/mean';
    const isFamily = base !== tag && ['mean', 'min', 'max'].every(leaf => left.has(`${base}/${leaf}`));
    charts.push(isFamily ? {title: base, lines: [line(mean, 'mean', 0, [base + '/min', base + '/max'])]}
                         : {title: tag, lines: [line(tag, 'value', 0)]});
  }
  return charts;
}

// Seconds of stages, in the order of a step, and what of the step belongs to no stage.
function timeBars(all) {
  let tags = [...all.keys()].filter(tag => tag.startsWith('timing_s/') && tag !== 'timing_s/step');
  const rank = tag => (stageOrder.indexOf(tag.slice(9)) + 100) % 100;
  tags = tags.filter(tag => all.get(tag).max).sort((a, b) => rank(a) - rank(b));
  const total = all.get('timing_s/step');
  if (!tags.length && !total?.max) return [];
  const base = total || tags.map(tag => all.get(tag)).reduce((a, b) => b.x.length > a.x.length ? b : a);
  // The validation before the first step is earlier than all times of steps.
  const begin = Math.min(...tags.map(tag => all.get(tag).x[0])), x = begin < base.x[0] ? [begin, ...base.x] : base.x;
  const sum = x.map(() => 0);
  // A stage that runs at some steps only is spread over the steps that a drawn point stands for.
  const bars = tags.map((tag, index) => {
    const stage = all.get(tag), own = x.map(() => 0);
    stage.x.forEach((step, k) => {
      let i = nearest(x, step);
      if (x[i] < step && i + 1 < x.length) ++i;
      const steps = stage.x !== base.x && base.low && i > 0 ? x[i] - x[i - 1] : 1;
      own[i] += (stage.y[k] || 0) / steps;
    });
    if (tag !== 'timing_s/testing') own.forEach((value, i) => sum[i] += value);  // a validation is no part of a step
    return {name: tag.slice(9).replace(/_/g, ' '), colour: colour(index), x, y: own};
  });
  if (total) {
    const ahead = x.length - total.x.length;
    const rest = x.map((_, i) => Math.max(0, (total.y[i - ahead] || 0) - sum[i]));
    const name = tags.length ? 'rest' : 'step';
    if (rest.some((value, i) => value > 0.02 * sum[i])) bars.push({name, colour: 'var(--rest)', x, y: rest});
  }
  return bars;
}

// ---- The page ----

// {title, problem, facts, seconds, unreadable, phases: [{name, first_step, last_step, all: tag -> series}],
// samples: lists of samples, timeline, config, and of a run that is followed: state, read (share of its logs), trouble}.
let run = {phases: [], samples: []}, phases = [];

// Of the data of a report.
function setRun(data) {
  run = data;
  phases = run.phases.map(phase => ({...phase, all: metricsOf(phase)}));
}

// The page has a section for each part, so that one of them can be shown anew while the others stay.
const page = main, sections = new Map();

function sectionOf(name) {
  if (!sections.has(name)) sections.set(name, add(page, 'section', {id: `part-${name}`}));
  return sections.get(name);
}

// Draws a part without controls anew, unless it looks the same.
function render(name, draw) {
  const section = sectionOf(name), fresh = document.createElement('section');
  main = fresh;
  draw();
  main = section;
  if (fresh.innerHTML !== section.innerHTML) section.replaceChildren(...fresh.childNodes);
}

const stepList = phase => [...new Set([...phase.all.values()].map(s => s.x))].filter(x => x.length);

// The first of `tags` that has a value, in the last phase that has one.
function find(...tags) {
  for (const tag of tags) {
    for (const phase of [...phases].reverse()) {
      const found = phase.all.get(tag);
      if (found?.last) return {...found, phase};
    }
  }
}

function addHead() {
  document.title = run.title || 'Training run';
  add(main, 'h1', {}, document.title);
  const facts = add(main, 'dl', {class: 'facts'});
  for (const [name, value] of run.facts) {
    const pair = add(facts, 'div');
    add(pair, 'dt', {}, name);
    add(pair, 'dd', {}, value);
  }
  if (run.problem) add(main, 'p', {class: 'problem', role: 'alert'}, `The run stopped early. ${run.problem}`);
  if (run.trouble) add(main, 'p', {class: 'problem'}, `Not all of the run's folder can be read. ${run.trouble}`);
  if (run.read < 1) add(main, 'p', {class: 'note'}, `The logs are being read: ${Math.floor(100 * run.read)} %.`);
  if (run.unreadable) add(main, 'p', {class: 'note'}, `${run.unreadable} lines of the logs could not be read.`);
  const tiles = add(main, 'div', {class: 'tiles'});
  const tile = (name, value, note) => {
    const box = add(tiles, 'div', {class: 'tile'});
    add(box, 'span', {}, name);
    add(box, 'b', {}, value);
    add(box, 'span', {}, note || '\u00a0');
  };
  const names = {'val/accuracy': 'Validation accuracy', 'val/loss': 'Validation loss', 'train/loss': 'Loss'};
  const headline = find('val/accuracy', 'val/loss', 'train/loss');
  if (headline) {
    const {tag, last, min, max, x, y} = headline, name = names[tag];
    const best = /loss/.test(tag) ? min : max, start = y.findIndex(value => value !== null);
    const at = step => `at step ${grouped(String(step))}`;
    tile(name, number(last[1]), x[start] === last[0] ? at(last[0]) : `${at(last[0])}, ${number(y[start])} ${at(x[start])}`);
    tile(/loss/.test(tag) ? 'Lowest' : 'Best', number(best[1]), at(best[0]));
  }
  if (phases.length) {
    const upTo = p => `, after ${phaseName(p.name).toLowerCase()} to step ${grouped(String(p.last_step))}`;
    const before = phases.slice(0, -1).map(upTo);
    tile('Steps', grouped(String(phases.at(-1).last_step)), phaseName(phases.at(-1).name) + before.join(''));
  }
  const speeds = find('perf/throughput')?.y.filter(value => value !== null);
  const mean = speeds && speeds.reduce((a, b) => a + b, 0) / speeds.length;
  if (run.seconds !== null) tile('Total time', duration(run.seconds), speeds && `${number(mean)} tokens/s on average`);
}

function addConstants(constants) {
  const list = add(main, 'dl', {class: 'card constants'});
  for (const s of constants) {
    const pair = add(list, 'div');
    add(pair, 'dt', {}, s.tag);
    add(pair, 'dd', {}, number(s.last?.[1]));
  }
}

// What a phase shows; nothing if it has no steps.
function specOf(phase) {
  const steps = stepList(phase);
  if (!steps.length) return null;
  const bars = timeBars(phase.all), all = chartsOf(phase.all);
  const barChart = {title: 'Seconds of each step', size: 'wide', lines: [], bars};
  return {phase, steps, bars, ...all, drawn: [...all.charts, ...all.others, ...(bars.length ? [barChart] : [])]};
}

// What has to be the same for charts to stay and only change what they show.
const shapeOf = spec => JSON.stringify([spec.phase.name, spec.bars.map(s => s.name), spec.constants.map(s => s.tag),
  spec.drawn.map(chart => [chart.title, chart.lines.map(s => s.tag)])]);

function stepsText(spec) {
  const [first, last] = [spec.phase.first_step, spec.phase.last_step].map(s => grouped(String(s)));
  return first === last ? `step ${last}` : `steps ${first} to ${last}`;
}

function addPhase(spec) {
  const {charts, others, constants, phase} = spec, group = addGroup(spec.steps);
  const heading = addHeading(phaseName(phase.name), stepsText(spec));
  if (charts.length) addGrid(group, charts);
  if (others.length) {
    add(main, 'h3', {}, 'Other');
    addGrid(group, others);
  }
  if (constants.length) {
    add(main, 'h3', {}, 'The same at every step');
    addConstants(constants);
  }
  const whole = addTimes(spec, group);
  point(group, null);
  return {shape: shapeOf(spec), group, note: heading.querySelector('small'), whole};
}

// What the time of a phase went into: of all its steps, and of each.
function addTimes(spec, group) {
  if (!spec.bars.length) return null;
  addHeading(phases.length > 1 ? `${phaseName(spec.phase.name)}: time by stage` : 'Time by stage');
  const grid = add(main, 'div', {class: 'grid'}), whole = add(grid, 'div', {class: 'card wide'});
  addCard(grid, group, spec.drawn.at(-1));
  fillTimes(whole, spec);
  return whole;
}

function fillTimes(whole, {bars, phase}) {
  whole.replaceChildren();
  const x = bars[0].x, isMean = phase.all.get('timing_s/step')?.low;  // of the steps since the point before
  const each = x.map((step, i) => isMean && i > 0 ? step - x[i - 1] : 1);
  const totals = bars.map(s => s.y.reduce((sum, value, i) => sum + value * each[i], 0));
  const all = totals.reduce((a, b) => a + b);
  add(add(whole, 'header'), 'span', {}, `${duration(all)} in all`);
  const strip = add(whole, 'div', {class: 'strip'}), legend = add(whole, 'ul', {class: 'legend'});
  bars.forEach((s, i) => {
    const share = 100 * totals[i] / (all || 1), text = `${share.toFixed(share < 10 ? 1 : 0)} %`;
    add(strip, 'i', {style: `width: ${share}%; background: ${s.colour}`, title: `${s.name}: ${text}`});
    const item = add(legend, 'li');
    add(item, 'i', {style: `background: ${s.colour}`});
    item.append(s.name);
    add(item, 'b', {}, `${text}, ${duration(totals[i])}`);
  });
}

let shownPhases = [];

function showCharts() {
  const specs = [...phases].reverse().map(specOf).filter(spec => spec);
  const same = specs.length === shownPhases.length && specs.every((spec, i) => shapeOf(spec) === shownPhases[i].shape);
  main = sectionOf('charts');
  if (!same) {
    const focused = main.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
    main.replaceChildren();
    groups.length = 0;
    shownPhases = specs.map(addPhase);
    if (focused) main.querySelector(`[aria-label=${CSS.escape(focused)}]`)?.focus();
    return;
  }
  specs.forEach((spec, i) => {
    const {group, note, whole} = shownPhases[i];
    Object.assign(group, extentOf(spec.steps));
    note.textContent = stepsText(spec);
    if (whole) fillTimes(whole, spec);
    group.cards.forEach((card, k) => {
      Object.assign(card.chart, spec.drawn[k]);
      changed(card);
    });
  });
}

const sampleGroups = new Map();  // title -> {text, details}

// The answers of steps, folded but for the last of those that are there at first where the window is wide. What has not
// changed stays as it is.
function showSamples() {
  if (!run.samples.length) return;
  main = sectionOf('samples');
  if (!main.querySelector('h2')) addHeading('Sample answers');
  const wide = matchMedia('(min-width: 700px)').matches, isFirst = !sampleGroups.size, titles = new Set();
  for (const group of run.samples) {
    const right = group.filter(sample => sample.correct).length, judged = group.some(sample => sample.correct !== null);
    const title = `${phaseName(group[0].phase)}, step ${grouped(String(group[0].step))}`;
    const text = JSON.stringify(group), known = sampleGroups.get(title);
    titles.add(title);
    if (known?.text === text) continue;
    const open = known ? known.details.open : wide && isFirst && group === run.samples.at(-1);
    const details = addFolded(main, title, open ? {open: ''} : {});
    known?.details.replaceWith(details);
    sampleGroups.set(title, {text, details});
    if (judged) add(details.querySelector('summary'), 'small', {}, `${right} of these ${group.length} right`);
    const names = ['Prompt', 'Answer', 'Right answer'], texts = ['prompt', 'response', 'truth'];
    if (group.some(sample => sample.message)) {
      names.push('What the rewards say');
      texts.push('message');
    }
    const body = addTable(details, title, ['', ...names, 'Reward#']);
    body.parentNode.className = 'samples';
    for (const sample of group) {
      const row = add(body, 'tr');
      const verdict = sample.correct === null ? ['', ''] : sample.correct ? ['right', '✓'] : ['wrong', '✗'];
      add(row, 'td', {class: 'mark ' + verdict[0], title: verdict[0]}, verdict[1]);
      texts.forEach((text, i) => {
        add(add(row, 'td', {class: 'text', 'data-name': names[i]}), 'div', {}, sample[text]);
      });
      add(row, 'td', {class: 'number', 'data-name': 'Reward'}, number(sample.reward));
    }
  }
  for (const [title, {details}] of sampleGroups) {
    if (titles.has(title)) continue;
    details.remove();
    sampleGroups.delete(title);
  }
}

let lastValues;  // the body of the table

function fillLastValues() {
  if (!lastValues || (lastValues.children.length && !lastValues.closest('details').open)) return;
  lastValues.replaceChildren();
  for (const phase of phases) {
    for (const s of phase.all.values()) {
      const row = add(lastValues, 'tr');
      add(row, 'td', {}, phaseName(phase.name));
      add(row, 'td', {class: 'name'}, s.tag);
      for (const entry of [s.last, s.min, s.max]) add(row, 'td', {class: 'number'}, entry ? number(entry[1]) : '–');
    }
  }
}

function showDetails() {
  main = sectionOf('details');
  if (!main.querySelector('h2')) addHeading('Details');
  if (run.config && !main.querySelector('pre')) add(addFolded(main, 'Resolved configuration'), 'pre',
    {tabindex: 0, role: 'region', 'aria-label': 'The configuration'});
  if (run.config) main.querySelector('pre').textContent = run.config;
  if (phases.length && !lastValues) {
    const folded = addFolded(main, 'Every metric: last, least and most');
    lastValues = addTable(folded, 'Every metric', ['Phase', 'Metric', 'Last#', 'Least#', 'Most#']);
    folded.addEventListener('toggle', fillLastValues);
  }
  fillLastValues();
}

let stageTimeline;

function showTimeline() {
  main = sectionOf('timeline');
  if (stageTimeline) stageTimeline.update(run.timeline);
  else if (run.timeline?.spans.length) stageTimeline = addStageTimeline(run.timeline);
}

function showRun() {
  // In the order of the page, whatever has news first.
  for (const name of ['head', 'now', 'charts', 'timeline', 'samples', 'details']) sectionOf(name);
  render('head', addHead);
  showCharts();
  showTimeline();
  showSamples();
  showDetails();
  updateNav();
}
