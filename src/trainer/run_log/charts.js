// ---- Elements and numbers ----

function add(parent, name, attributes = {}, text) {
  const svg = ['svg', 'g', 'path', 'line', 'circle', 'text', 'rect', 'title'].includes(name);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// A heading that the navigation at the top leads to, after updateNav().
function addHeading(title, note) {
  const heading = add(main, 'h2', {'data-title': title}, title);
  if (note) add(heading, 'small', {}, note);
  return heading;
}

function updateNav() {
  const headings = [...document.querySelectorAll('main h2')], links = nav.querySelector('div');
  headings.forEach((heading, i) => heading.id = `section-${i + 1}`);
  if (headings.map(h => h.dataset.title).join('\n') === [...links.children].map(a => a.textContent).join('\n')) return;
  links.replaceChildren();
  for (const heading of headings) add(links, 'a', {href: `#${heading.id}`}, heading.dataset.title);
}

// Says to a screen reader, when it has nothing else to say.
function announce(text) {
  const region = document.querySelector('[role=status]') ||
    add(document.body, 'div', {role: 'status', 'aria-live': 'polite', class: 'unseen'});
  region.textContent = text;
}

function addFolded(parent, title, attributes = {}) {
  const details = add(parent, 'details', attributes);
  add(details, 'summary', {}, title);
  return details;
}

// A table's body; a column whose name ends with '#' has numbers. What surrounds it has the focus, for the keys that
// scroll, and so a name.
function addTable(parent, name, columns) {
  const region = {class: 'table', tabindex: 0, role: 'region', 'aria-label': name};
  const table = add(add(parent, 'div', region), 'table');
  const head = add(add(table, 'thead'), 'tr');
  for (const name of columns) {
    add(head, 'th', {scope: 'col', ...(name.endsWith('#') ? {class: 'number'} : {})}, name.replace(/#$/, ''));
  }
  return add(table, 'tbody');
}

const grouped = digits => digits.replace(/\B(?=(\d{3})+$)/g, ',');

function number(value) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(2).replace(/\.?0*e/, 'e').replace(/-/g, '−');
  const text = size >= 1000 ? grouped(size.toFixed(0)) : size.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return (value < 0 ? '−' : '') + text.replace(/^(\d+)\.0+$/, '$1');
}

function duration(seconds) {
  const whole = Math.round(seconds), part = (n, unit) => `${n} ${unit}`;
  if (seconds < 10) return part(Number(seconds.toPrecision(2)), 's');
  if (whole < 60) return part(whole, 's');
  if (whole < 3600) return `${part(Math.floor(whole / 60), 'min')} ${part(whole % 60, 's')}`;
  return `${part(Math.floor(whole / 3600), 'h')} ${part(Math.floor(whole % 3600 / 60), 'min')}`;
}

const counted = (count, name) => `${grouped(String(count))} ${name}${count === 1 ? '' : 's'}`;

// Round numbers that span [low, high], about `count` of them.
function ticks(low, high, count, least = 0) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, power * [1, 2, 5, 10].find(m => m * power >= raw * 0.75));
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => ({at: (first + i) * step}));
}

// Powers of ten that span [low, high], and multiples of them where there are few.
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), step = Math.ceil((last - first) / 6);
  const marks = last - first > 4 ? [1] : last - first > 2 ? [1, 3] : [1, 2, 5];
  const all = [];
  for (let power = first; power <= last + step - 1; power += step) {
    all.push(...marks.map(mark => Number(`${mark}e${power}`)));
  }
  const begin = all.findLastIndex(at => at <= low * 1.000001), end = all.findIndex(at => at >= high * 0.999999);
  return all.slice(Math.max(0, begin), end < 0 ? undefined : end + 1).map(at => ({at}));
}

function logTexts(axis) {
  return axis.map(({at}) => {
    if (at >= 1e3) return tickTexts([{at: 0}, {at}])[1];
    return at >= 1e-3 ? String(at) : at.toExponential().replace('-', '−');
  });
}

// The labels of an axis, all in one unit.
function tickTexts(axis) {
  const step = axis.length > 1 ? axis[1].at - axis[0].at : 1, top = Math.max(...axis.map(({at}) => Math.abs(at)));
  const [unit, suffix] = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([u]) => top >= u * (u > 1e3 ? 1 : 10)) || [1, ''];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return axis.map(({at}) => {
    const size = Math.abs(at), sign = at < 0 ? '−' : '';
    if (size < step / 2) return '0';
    if (step >= 1e-4) return sign + (size / unit).toFixed(decimals) + suffix;
    const power = Math.floor(Math.log10(size) + 1e-9);
    return `${sign}${Number((size / 10 ** power).toFixed(decimals + power))}e−${-power}`;
  });
}

// The index of the value of sorted `xs` that is nearest to `x`.
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

// ---- Drawing a chart ----

// A chart is {title, share, size, quiet: without a legend, lines: [{name, colour, x, y, low, high, dashed, spikes: {low,
// high}, run}], bars: [{name, colour, x, y}]}; bars are stacked, the first at the bottom, and all have the same x. A group of charts is {range, gap, cards}: they have one
// axis of steps, and show the values of one step; `gap` is the distance between points where they are densest.

const height = 200, margin = {top: 8, right: 12, bottom: 24};
const groups = [];
let smoothing = 0;  // how much of the average at a point goes into that at the next

const colour = i => `var(--c${i % 8})`;
// Straight lines, and times in other units: the tables of last values say as much.
const isHidden = tag => ['training/', 'data/', 'dock/completed/', 'timing_per_token_ms/', 'perf/flops/',
  'perf/deepspeed_chat_flops/', 'perf/time_per_step', 'perf/num_generated_tokens'].some(prefix => tag.startsWith(prefix));
// Whether a series has more than one value.
const moves = s => s.max !== undefined && s.min[1] !== s.max[1];

// The exponential moving average, which begins with the first value. Points that are further apart than `gap` are
// smoothed less, so that all lines are averaged over the same number of steps.
function smoothed({x, y}, gap) {
  let sum = 0, weights = 0;
  return y.map((value, i) => {
    if (value === null) return null;
    const kept = smoothing ** (i > 0 ? Math.max(1, (x[i] - x[i - 1]) / gap) : 1);
    sum = kept * sum + (1 - kept) * value;
    weights = kept * weights + 1 - kept;
    return sum / weights;
  });
}

// Of all that is drawn.
function extremes(chart) {
  let least = Infinity, most = -Infinity;
  const take = value => {
    if (value === null) return;
    least = Math.min(least, Math.max(value, -1e300));  // so that the distance of both is a number, too
    most = Math.max(most, Math.min(value, 1e300));
  };
  for (const {y, low, high, spikes} of chart.lines) {
    for (const list of [y, low || spikes?.low, high || spikes?.high]) list?.forEach(take);
  }
  for (const [i] of (chart.bars?.[0]?.x || []).entries()) take(chart.bars.reduce((sum, s) => sum + s.y[i], 0));
  return least <= most ? [least, most] : [0, 1];
}

// Where a logarithmic scale shows more than a linear one.
function suitsLog(chart) {
  const [low, high] = extremes(chart);
  return !chart.share && !chart.bars && low > 0 && high >= 10 * low;
}

function valueRange(chart) {
  if (chart.share) return [0, 1];
  let [low, high] = extremes(chart);
  if (chart.log) return [low, high];
  if (chart.bars || (low > 0 && low < 0.5 * high)) low = 0;
  if (high < 0 && high > 0.5 * low) high = 0;
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * low)];
  return [low, high];
}

// Path data through the points; what is null leaves a gap.
function trace(xs, ys, x, y) {
  let path = '', open = false;
  xs.forEach((step, i) => {
    if (ys[i] !== null) path += `${open ? 'L' : 'M'}${x(step).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    open = ys[i] !== null;
  });
  return path;
}

function ribbon(xs, lows, highs, x, y) {
  let path = '';
  for (let begin = 0, end; begin < xs.length; begin = end + 1) {
    for (end = begin; end < xs.length && lows[end] !== null && highs[end] !== null;) ++end;
    if (end === begin) continue;
    const at = (i, ys) => `${x(xs[i]).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    const indexes = Array.from({length: end - begin}, (_, k) => begin + k);
    path += 'M' + indexes.map(i => at(i, highs)).join('L') + 'L' + indexes.reverse().map(i => at(i, lows)).join('L') + 'Z';
  }
  return path;
}

// Bars of the steps `xs`, each from the middle between it and the step before to the middle between it and the next.
function bars(xs, lows, highs, x, y) {
  const edge = i => i === 0 ? xs[0] - 0.5 * (xs.length > 1 ? xs[1] - xs[0] : 1)
    : i === xs.length ? 2 * xs[i - 1] - edge(i - 1) : (xs[i - 1] + xs[i]) / 2;
  const gap = x(edge(1)) - x(edge(0)) > 5 ? 0.1 : 0;
  return xs.map((_, i) => {
    const left = x(edge(i)), right = x(edge(i + 1)), space = gap * (right - left);
    return highs[i] > lows[i] ? `M${(left + space).toFixed(1)},${y(lows[i]).toFixed(1)}V${y(highs[i]).toFixed(1)}` +
      `H${(right - space).toFixed(1)}V${y(lows[i]).toFixed(1)}Z` : '';
  }).join('');
}

// The steps that a chart shows: half a bar more on both sides of bars.
function stepRange({chart, group}) {
  const xs = chart.bars?.[0]?.x;
  if (!xs) return group.range;
  const half = 0.5 * (xs.length > 1 ? xs[1] - xs[0] : 1);
  return [xs[0] - half, xs.at(-1) + half];
}

// From the least to the most at each step, so that every spike shows.
function traceSpikes({x: xs, spikes: {low, high}}, x, y) {
  return trace(xs.flatMap(step => [step, step]), xs.flatMap((_, i) => [low[i], high[i]]), x, y);
}

function drawLine(lines, s, x, y, gap, thin) {
  const smooth = smoothing > 0 && s.x.length > 2;
  const width = thin ? 1 : s.x.length > 400 ? 1.2 : s.x.length > 60 ? 1.6 : 2.2;
  const look = {fill: 'none', stroke: s.colour, 'stroke-linejoin': 'round'};
  if (s.dashed) look['stroke-dasharray'] = '6 3';
  const own = smooth ? {'stroke-width': 1, 'stroke-opacity': .3} : {'stroke-width': width};
  const addPart = (name, attributes) => add(lines, name, attributes).run = s.run;
  addPart('path', {...look, ...own, d: s.spikes ? traceSpikes(s, x, y) : trace(s.x, s.y, x, y)});
  if (smooth) addPart('path', {...look, d: trace(s.x, smoothed(s, gap), x, y), 'stroke-width': width + .4});
  s.y.forEach((value, i) => {
    const alone = (i === 0 || s.y[i - 1] === null) && (i + 1 === s.y.length || s.y[i + 1] === null);
    if (value !== null && (alone || s.x.length <= 30)) {
      addPart('circle', {cx: x(s.x[i]).toFixed(1), cy: y(value).toFixed(1), r: 2.4, fill: s.colour,
                         'fill-opacity': smooth && !alone ? .3 : 1});
    }
  });
}

// Brings the lines of the highlighted run to the fore, without drawing anything anew.
function showHighlight({chart, group: {highlighted}, lines}) {
  const top = [];
  for (const part of lines?.children || []) {
    const isTop = Boolean(highlighted) && part.run === highlighted;
    const opacity = highlighted ? !isTop && .12 : chart.quiet && .5;
    if (opacity) part.setAttribute('opacity', opacity); else part.removeAttribute('opacity');
    if (isTop) top.push(part);
  }
  lines?.append(...top);
}

function draw(card) {
  const {chart, svg} = card, width = svg.clientWidth;
  if (!width) return;
  svg.replaceChildren();
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const yTicks = chart.log ? logTicks(...valueRange(chart)) : ticks(...valueRange(chart), 5);
  const labels = chart.log ? logTexts(yTicks) : tickTexts(yTicks), scaled = chart.log ? Math.log : value => value;
  const low = scaled(yTicks[0].at), high = scaled(yTicks.at(-1).at);
  const x0 = 8 + 6.4 * Math.max(...labels.map(label => label.length)), x1 = width - margin.right;
  const [first, last] = stepRange(card);
  const x = step => x0 + (step - first) / (last - first) * (x1 - x0);
  const y = value => height - margin.bottom - (scaled(value) - low) / (high - low) * (height - margin.bottom - margin.top);
  yTicks.forEach((tick, i) => {
    const at = y(tick.at).toFixed(1);
    add(svg, 'line', {x1: x0, x2: x1, y1: at, y2: at, stroke: i ? 'var(--grid)' : 'var(--axis)'});
    add(svg, 'text', {x: x0 - 6, y: at, dy: '.33em', 'text-anchor': 'end'}, labels[i]);
  });
  const xTicks = ticks(first, last, Math.max(2, (x1 - x0) / 90), 1).filter(({at}) => at >= first && at <= last);
  tickTexts(xTicks).forEach((label, i) => {
    add(svg, 'text', {x: x(xTicks[i].at).toFixed(1), y: height - 6, 'text-anchor': 'middle'}, label);
  });
  let floor = chart.bars?.[0]?.x.map(() => 0);
  for (const s of chart.bars || []) {
    const top = floor.map((value, i) => value + s.y[i]);
    add(svg, 'path', {d: bars(s.x, floor, top, x, y), fill: s.colour});
    floor = top;
  }
  for (const s of chart.lines) {
    // The outline shows spikes that are narrower than a pixel.
    if (s.low) add(svg, 'path', {d: ribbon(s.x, s.low, s.high, x, y), fill: s.colour, 'fill-opacity': .16,
                                 stroke: s.colour, 'stroke-opacity': .35, 'stroke-width': .8});
  }
  card.lines = add(svg, 'g');
  for (const s of [...chart.lines].reverse()) drawLine(card.lines, s, x, y, card.group.gap, chart.quiet);
  showHighlight(card);
  card.cursor = add(svg, 'g', {'pointer-events': 'none'});
  card.scale = {x, y, x0, x1};
}

// ---- Reading a chart ----

const seriesOf = chart => [...(chart.bars || []), ...chart.lines];

// Shows the values at `step`, or the last ones where it is null, in every chart of the group.
function point(group, step) {
  group.step = step;
  for (const card of group.cards) pointCard(card, step);
}

function valueText(s, at) {
  const value = s.y[at], low = s.low?.[at], high = s.high?.[at];
  return number(value) + (value != null && low != null ? ` (${number(low)} to ${number(high)})` : '');
}

function pointCard(card, step) {
  if (!card.cursor) return;
  const {x, y} = card.scale;
  card.cursor.replaceChildren();
  const series = seriesOf(card.chart);
  const at = series.map(s => step === null ? s.y.findLastIndex(value => value !== null) : nearest(s.x, step));
  card.at.textContent = step === null ? '' : `step ${grouped(String(step))}`;
  if (step !== null) {
    const where = x(step).toFixed(1);
    add(card.cursor, 'line', {x1: where, x2: where, y1: margin.top, y2: height - margin.bottom, stroke: 'var(--dim)',
                              'stroke-dasharray': '3 3'});
  }
  series.forEach((s, k) => {
    const value = s.y[at[k]];
    if (card.values[k]) card.values[k].textContent = valueText(s, at[k]);
    if (step !== null && value != null && card.chart.lines.includes(s)) {
      add(card.cursor, 'circle', {cx: x(s.x[at[k]]).toFixed(1), cy: y(value).toFixed(1), r: 4, fill: s.colour,
                                  stroke: 'var(--card)', 'stroke-width': 2});
    }
  });
}

const resized = new ResizeObserver(entries => {
  for (const {target} of entries) {
    if (target.clientWidth === target.card.drawn) continue;
    target.card.drawn = target.clientWidth;
    draw(target.card);
    pointCard(target.card, target.card.group.step);
  }
});

function addLogSwitch(header, card) {
  const button = add(header, 'button', {type: 'button', 'aria-pressed': 'false', title: 'Logarithmic scale',
                                        'aria-label': `${card.chart.title} on a logarithmic scale`}, 'log');
  button.addEventListener('click', () => {
    card.chart.log = !card.chart.log;
    button.setAttribute('aria-pressed', card.chart.log);
    draw(card);
    point(card.group, null);
  });
}

function addCard(grid, group, chart) {
  const box = add(grid, 'div', {class: `card ${chart.size || ''}`});
  const header = add(box, 'header');
  add(header, 'span', {}, chart.title);
  const card = {chart, group, at: add(header, 'span'), values: []};
  if (suitsLog(chart)) addLogSwitch(header, card);
  const legend = add(box, 'ul', {class: 'legend'});
  for (const s of chart.quiet ? [] : seriesOf(chart)) {
    const item = add(legend, 'li');
    add(item, 'i', {style: `background: ${s.colour}`});
    item.append(s.name);
    card.values.push(add(item, 'b'));
  }
  card.svg = add(box, 'svg', {height, role: 'img', tabindex: 0, 'aria-label': `${chart.title} by step`});
  card.svg.card = card;
  addTableSwitch(header, box, card);
  group.cards.push(card);
  draw(card);
  resized.observe(card.svg);
  seen.observe(card.svg);
  card.svg.addEventListener('pointermove', event => {
    if (!card.scale) return;
    const {x0, x1} = card.scale, [first, last] = stepRange(card), xs = stepsOf(chart);
    const place = event.clientX - card.svg.getBoundingClientRect().left;
    point(group, xs[nearest(xs, first + (place - x0) / (x1 - x0) * (last - first))]);
  });
  card.svg.addEventListener('pointerleave', () => point(group, null));
  card.svg.addEventListener('keydown', event => moveCursor(card, event));
  card.svg.addEventListener('blur', () => point(group, null));
}

// All steps that a chart has points at, of its longest series.
const stepsOf = chart => seriesOf(chart).map(s => s.x).reduce((a, b) => b.length > a.length ? b : a);

// The arrow keys go from point to point, and say what is there.
function moveCursor(card, event) {
  const {group, chart} = card, xs = stepsOf(chart), last = xs.length - 1;
  const at = group.step === null ? last + 1 : nearest(xs, group.step), far = Math.ceil(xs.length / 20);
  const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, PageUp: at - far, PageDown: at + far}[event.key];
  if (event.key === 'Escape') point(group, null);
  if (to === undefined) return;
  event.preventDefault();
  point(group, xs[Math.min(last, Math.max(0, to))]);
  const values = seriesOf(chart).map(s => `${s.name} ${valueText(s, nearest(s.x, group.step))}`);
  announce(`${chart.title}, step ${group.step}: ${values.slice(0, 8).join(', ')}`);
}

// Where a chart has new values: drawn at once if it can be seen, and otherwise once it can.
function changed(card) {
  card.stale = true;
  if (card.seen) refresh(card);
}

function refresh(card) {
  if (!card.stale) return;
  card.stale = false;
  draw(card);
  pointCard(card, card.group.step);
  if (card.table) fillChartTable(card);
}

const seen = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    target.card.seen = isIntersecting;
    if (isIntersecting) refresh(target.card);
  }
}, {rootMargin: '300px'});

// The values of a chart as a table, in place of it: at most 100 of its points, with the last one.
function addTableSwitch(header, box, card) {
  const button = add(header, 'button', {type: 'button', 'aria-pressed': 'false',
                                        'aria-label': `${card.chart.title} as a table`}, 'table');
  button.addEventListener('click', () => {
    card.table?.parentNode.parentNode.remove();
    const body = card.table ? null
      : addTable(box, `Values of ${card.chart.title}`, ['Step#', ...seriesOf(card.chart).map(s => `${s.name}#`)]);
    card.table = body;
    box.classList.toggle('as-table', Boolean(body));
    button.setAttribute('aria-pressed', Boolean(body));
    if (body) fillChartTable(card);
  });
}

function fillChartTable({chart, table}) {
  const xs = stepsOf(chart), each = Math.ceil(xs.length / 100);
  table.replaceChildren();
  for (let i = xs.length - 1; i >= 0; i -= each) {
    const row = add(table, 'tr');
    add(row, 'td', {class: 'number'}, grouped(String(xs[i])));
    for (const s of seriesOf(chart)) add(row, 'td', {class: 'number'}, s.x.length ? valueText(s, nearest(s.x, xs[i])) : '–');
  }
}

function addGrid(group, charts) {
  const grid = add(main, 'div', {class: 'grid'});
  for (const chart of charts) addCard(grid, group, chart);
}

// What the charts of a group have in common, whose steps are `steps`, sorted lists of them.
function extentOf(steps) {
  const ends = steps.filter(list => list.length).flatMap(list => [list[0], list.at(-1)]);
  const first = Math.min(...ends), last = Math.max(...ends);
  const range = first === last ? [first - 1, last + 1] : [first === 1 && last > 10 ? 0 : first, last];
  const gaps = steps.filter(list => list.length > 1).map(list => (list.at(-1) - list[0]) / (list.length - 1));
  return {range, gap: Math.min(...gaps)};
}

function addGroup(steps) {
  groups.push({...extentOf(steps), cards: [], step: null});
  return groups.at(-1);
}

function addSmoothing() {
  const label = add(nav, 'label', {}, 'Smoothing ');
  const slider = add(label, 'input', {type: 'range', min: 0, max: 99, value: 0});
  const shown = add(label, 'output', {}, '0');
  slider.addEventListener('input', () => {
    smoothing = slider.value / 100;
    shown.textContent = smoothing;
    for (const group of groups) {
      group.cards.forEach(draw);
      point(group, null);
    }
  });
}
