'use strict';
const colours = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5'];
const report = JSON.parse(document.getElementById('data').textContent);
const main = document.getElementById('main');
const view = { names: [], overview: null, stories: new Map(), chosen: new Set(), metrics: new Map(), log: null, logText: '' };

// ---- elements: all text is set as text, never as markup
function el(name, attributes = {}, ...children) {
  const result = document.createElement(name);
  set(result, attributes, children);
  return result;
}
function svg(name, attributes = {}, ...children) {
  const result = document.createElementNS('http://www.w3.org/2000/svg', name);
  set(result, attributes, children);
  return result;
}
function set(to, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) to.addEventListener(key.slice(2), value);
    else if (key === 'style') for (const [k, v] of Object.entries(value)) to.style.setProperty(k, v);
    else to.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false) to.append(child instanceof Node ? child : String(child));
}

// ---- numbers and times
const isNumber = x => typeof x === 'number' && isFinite(x);
function num(x, digits = 4) {
  if (!isNumber(x)) return 'not finite';
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return x.toLocaleString('en-GB');
  const size = Math.abs(x);
  return size >= 1e6 || size < 1e-3 ? x.toExponential(digits - 2) : Number(x.toPrecision(digits)).toLocaleString('en-GB', { maximumFractionDigits: 6 });
}
function lasting(s) {
  if (!isNumber(s)) return '?';
  if (s < 0.01) return (1000 * s).toFixed(1) + ' ms';
  if (s < 9.95) return s.toFixed(s < 1 ? 2 : 1) + ' s';
  s = Math.round(s);
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + String(s % 60).padStart(2, '0') + ' s';
  if (s < 86400) return Math.floor(s / 3600) + ' h ' + String(Math.floor(s / 60) % 60).padStart(2, '0') + ' min';
  return Math.floor(s / 86400) + ' d ' + String(Math.floor(s / 3600) % 24).padStart(2, '0') + ' h';
}
const percent = x => isNumber(x) ? (100 * x).toFixed(1) + ' %' : '–';
function bytes(n) {
  if (!isNumber(n)) return '';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; n >= 1000 && i < 4; ++i) n /= 1000;
  return (i ? n.toFixed(1) : n) + ' ' + units[i];
}
const clock = (t, fine) => { const d = new Date(t); return isNaN(d) ? '' : d.toLocaleTimeString('en-GB') + (fine ? '.' + String(d.getMilliseconds()).padStart(3, '0').slice(0, 1) : ''); };
const lastPart = path => String(path || '').split('/').pop();

function stateClass(state) {
  if (['running', 'completed'].includes(state)) return 'good';
  if (['failed', 'driver lost', 'no answer'].includes(state)) return 'bad';
  if (['paused', 'pausing', 'held', 'stopping', 'starting', 'stopped', 'ending'].includes(state)) return 'warn';
  return 'quiet';
}
const marks = { running: '▶', completed: '✓', failed: '✕', 'driver lost': '✕', paused: '⏸', stopped: '■' };
const stateText = state => el('span', { class: 'state ' + stateClass(state) }, (marks[state] || '•') + ' ' + (state || '?'));

// ---- curves
function ticks(least, most, count) {
  if (!(most > least)) return [least];
  const raw = (most - least) / count, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].map(x => x * power).find(x => x >= raw * 0.999);
  const result = [];
  for (let x = Math.ceil(least / unit) * unit; x <= most + unit * 1e-6; x += unit) result.push(Math.abs(x) < unit * 1e-6 ? 0 : x);
  return result;
}
// series: [{label, curve: {steps, values, least, most}, colour}]
function chart(title, series) {
  const narrow = document.documentElement.clientWidth < 520, width = narrow ? 340 : 600, height = narrow ? 190 : 220, left = 56, right = 12, top = 10, bottom = 26;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const { curve } of series)
    curve.steps.forEach((step, i) => {
      x0 = Math.min(x0, step); x1 = Math.max(x1, step);
      if (curve.values[i] === null) return;
      y0 = Math.min(y0, curve.values[i]); y1 = Math.max(y1, curve.values[i]);
    });
  if (!isFinite(y0)) return el('p', { class: 'quiet' }, 'No finite value yet.');
  // A first point far outside must not flatten the rest: the axis covers 99 % of the values.
  const all = series.flatMap(s => s.curve.values.filter(v => v !== null)).sort((a, b) => a - b);
  if (all.length > 50) {
    const low = all[Math.floor(all.length * 0.005)], high = all[Math.floor(all.length * 0.995)];
    if (y1 - high > 2 * (high - low)) y1 = high;
    if (low - y0 > 2 * (high - low)) y0 = low;
  }
  if (y1 === y0) { y0 -= Math.abs(y0) * 0.1 || 1; y1 += Math.abs(y1) * 0.1 || 1; }
  if (x1 === x0) { x0 -= 1; x1 += 1; }
  const x = v => left + (v - x0) / (x1 - x0) * (width - left - right);
  const y = v => top + (1 - (Math.min(Math.max(v, y0), y1) - y0) / (y1 - y0)) * (height - top - bottom);
  const last = series.map(s => `${s.label}: ${num(s.curve.values.at(-1))}`).join('; ');
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title} by step, from ${num(y0)} to ${num(y1)}; last ${last}` });
  for (const v of ticks(y0, y1, 4))
    picture.append(svg('line', { class: 'axis', x1: left, x2: width - right, y1: y(v), y2: y(v) }),
      svg('text', { x: left - 6, y: y(v) + 4, 'text-anchor': 'end' }, num(v)));
  for (const v of ticks(x0, x1, narrow ? 3 : 5).filter(Number.isInteger))
    picture.append(svg('text', { x: x(v), y: height - 8, 'text-anchor': x(v) > width - right - 24 ? 'end' : 'middle' }, num(v)));
  for (const { curve, colour, label } of series) {
    const parts = [[]], band = [[]];
    curve.steps.forEach((step, i) => {
      if (curve.values[i] === null) { parts.push([]); band.push([]); return; }
      parts.at(-1).push(`${x(step).toFixed(1)},${y(curve.values[i]).toFixed(1)}`);
      band.at(-1).push([x(step).toFixed(1), y(curve.least[i]).toFixed(1), y(curve.most[i]).toFixed(1)]);
    });
    for (const each of band)
      if (each.length > 1) picture.append(svg('polygon', { class: 'band', style: { fill: `var(${colour})` },
        points: each.map(p => `${p[0]},${p[2]}`).concat(each.map(p => `${p[0]},${p[1]}`).reverse()).join(' ') }));
    for (const each of parts) {
      if (each.length > 1) picture.append(svg('polyline', { class: 'curve', style: { stroke: `var(${colour})` }, points: each.join(' ') }, svg('title', {}, label)));
      else if (each.length) picture.append(svg('circle', { cx: each[0].split(',')[0], cy: each[0].split(',')[1], r: 3, style: { fill: `var(${colour})` } }));
    }
  }
  return picture;
}
function legend(entries) {
  return el('div', { class: 'legend' }, entries.map(([text, colour]) => el('span', {}, el('i', { style: { background: `var(${colour})` } }), text)));
}

// ---- a run's timeline
const lanes = [['run', 'runs'], ['pause', 'pauses'], ['failure', 'failures'], ['generation', 'generations'], ['checkpoint', 'checkpoints'], ['request', 'requests']];
function eventText(e) {
  switch (e.event) {
    case 'started': return `started with ${e.workers ?? '?'} workers` + (e.resumed_from_step ? `, from step ${num(e.resumed_from_step)}` : '');
    case 'failure': return (e.consequence ? 'consequence: ' : '') + (e.cause || e.code);
    case 'generation': return `generation ${e.generation} with ${e.workers} workers from step ${num(e.step)}: ${e.cause || ''}` + (e.steps_redone ? ` (${e.steps_redone} step computed again)` : '');
    case 'pause': return `no step for ${lasting(e.seconds)} while generation ${e.generation} was formed` + (e.ranks > 1 ? ` (rank ${e.rank} waited longest of ${e.ranks})` : '');
    case 'checkpoint': return `step ${num(e.step)}, ${bytes(e.bytes)} in ${lasting(e.seconds)}`;
    case 'checkpoint_failed': case 'checkpoint_skipped': return `step ${num(e.step)}: ${e.cause || ''}`;
    case 'request': return 'a user asked to ' + (e.what || '?');
    case 'ended': return `${e.status || 'ended'}${e.step !== undefined ? ' after step ' + num(e.step) : ''}` + (e.cause ? ': ' + e.cause : '');
    default: {
      const text = e.text || e.cause;
      return text || Object.entries(e).filter(([k]) => !['time', 'event', 'process', 'run'].includes(k)).map(([k, v]) => `${k} ${typeof v === 'object' ? JSON.stringify(v) : v}`).join(', ');
    }
  }
}
const eventClass = e => e.event === 'failure' || e.event === 'checkpoint_failed' ? 'bad' : e.event === 'warning' || e.event === 'pause' || e.event === 'not_finite' ? 'warn' : 'quiet';
function timeline(story) {
  const events = story.events || [];
  const times = events.map(e => Date.parse(e.time)).filter(isFinite);
  if (!times.length) return el('p', { class: 'quiet' }, 'Nothing has happened yet.');
  const live = !['completed', 'stopped', 'failed'].includes(story.status?.state) && !report && !['driver lost', 'elsewhere'].includes(story.status?.state);
  const t0 = Math.min(...times), t1 = Math.max(...times, live ? Date.now() : 0, t0 + 1000);
  const width = 1200, left = 92, lane = 24, height = lanes.length * lane + 24;
  const x = t => left + (t - t0) / (t1 - t0) * (width - left - 12);
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Timeline; the list below says the same' });
  lanes.forEach(([, label], i) => picture.append(svg('text', { x: 0, y: i * lane + 16 }, label),
    svg('line', { class: 'axis', x1: left, x2: width - 12, y1: i * lane + lane, y2: i * lane + lane })));
  const at = kind => lanes.findIndex(l => l[0] === kind) * lane + 4;
  let began = null;
  const span = end => { if (began !== null) picture.append(svg('rect', { x: x(began), y: at('run'), width: Math.max(2, x(end) - x(began)), height: 14, rx: 3, style: { fill: 'var(--c0)' }, opacity: .55 })); began = null; };
  let before = t0;
  for (const e of events) {
    const t = Date.parse(e.time);
    if (!isFinite(t)) continue;
    const tip = svg('title', {}, `${clock(t)} ${eventText(e)}`);
    if (e.event === 'started') { span(before); began = t; }
    if (e.event === 'ended') span(t);
    before = t;
    if (e.event === 'pause') picture.append(svg('rect', { x: x(t - 1000 * (e.seconds || 0)), y: at('pause'), width: Math.max(3, x(t) - x(t - 1000 * (e.seconds || 0))), height: 14, style: { fill: 'var(--warn)' } }, tip));
    else if (e.event === 'failure' && !e.consequence) picture.append(svg('path', { d: `M${x(t) - 5} ${at('failure') + 2} l10 10 m0 -10 l-10 10`, style: { stroke: 'var(--bad)', 'stroke-width': 3 } }, tip));
    else if (e.event === 'generation') picture.append(svg('line', { x1: x(t), x2: x(t), y1: at('generation'), y2: at('generation') + 14, style: { stroke: 'var(--c3)', 'stroke-width': 2 } }, tip));
    else if (e.event === 'checkpoint') picture.append(svg('circle', { cx: x(t), cy: at('checkpoint') + 8, r: 4, style: { fill: 'var(--c2)' } }, tip));
    else if (e.event === 'request') picture.append(svg('path', { d: `M${x(t)} ${at('request') + 1} l6 12 h-12 z`, style: { fill: 'var(--c1)' } }, tip));
  }
  span(live ? t1 : Math.max(...times));
  for (let i = 0; i <= 4; ++i) {
    const t = t0 + (t1 - t0) * i / 4;
    picture.append(svg('text', { x: x(t), y: height - 6, 'text-anchor': i === 0 ? 'start' : i === 4 ? 'end' : 'middle' }, clock(t, t1 - t0 < 20000)));
  }
  const list = el('ol', { class: 'events', tabindex: 0, 'aria-label': 'What happened, the latest first', id: 'events' });
  const rest = events.filter(e => e.event !== 'checkpoint' || events.length < 60);
  for (const e of rest.slice(-150).reverse())
    list.append(el('li', {}, el('span', { class: 'quiet' }, clock(e.time)), el('span', { class: eventClass(e) }, e.event.replaceAll('_', ' ')), el('span', {}, eventText(e))));
  return el('div', {}, el('div', { class: 'scroll' }, picture), list);
}

// ---- parts of a run's page
function card(title, ...content) { return el('section', { class: 'card' }, el('h2', {}, title), content); }
const facts = entries => el('dl', { class: 'facts' }, entries.filter(e => e[1] !== undefined && e[1] !== null && e[1] !== '').map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));

function causeCard(story) {
  const status = story.status || {}, result = story.result || {};
  if (!['failed', 'driver lost', 'no answer'].includes(status.state)) return null;
  const reason = result.error && status.state === 'failed' ? result.error : {};
  const first = (story.failures || [])[0];
  const last = (story.failures || []).at(-1);
  return el('section', { class: 'card failed', role: 'alert' }, el('h2', {}, status.state === 'failed' ? 'Why it failed' : 'Its driver'),
    el('p', {}, reason.message || status.cause || status.hint || status.last_failure || 'The run’s files do not say.'),
    reason.code || status.code ? el('p', { class: 'quiet' }, 'error: ' + (reason.code || status.code)) : null,
    last && last.cause !== reason.message ? el('p', {}, 'Its last failure: ' + last.cause) : null,
    first && first !== last ? el('p', {}, 'Its first failure: ' + first.cause) : null,
    (result.last_lines || []).length ? el('pre', {}, result.last_lines.join('\n')) : null);
}
function statusCard(name, story) {
  const s = story.status || {}, parts = [];
  if (s.steps) parts.push(el('div', { class: 'bar', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': s.steps, 'aria-valuenow': s.step, 'aria-label': 'Steps' }, el('span', { style: { width: Math.min(100, 100 * s.step / s.steps) + '%' } })), el('p', {}));
  const workers = Array.isArray(s.workers) ? s.workers.length : undefined;
  parts.push(facts([
    ['State', stateText(s.state)], ['Step', s.steps ? `${num(s.step)} of ${num(s.steps)}` : num(s.step)],
    ['Throughput', s.samples_per_second ? num(Math.round(s.samples_per_second)) + ' samples/s' : ''],
    ['Time left', s.state === 'running' && isNumber(s.seconds_left) ? lasting(s.seconds_left) : ''],
    ['Runs for', isNumber(s.seconds_elapsed) ? lasting(s.seconds_elapsed) : isNumber(story.result?.seconds?.total) ? lasting(story.result.seconds.total) : ''],
    ['Workers', workers !== undefined ? workers + (s.workers_wanted?.max > workers ? ` of ${s.workers_wanted.max}` : '') : ''],
    ['Failures', s.failures ?? story.counts?.failure ?? 0], ['Generation', s.generation],
    ['Goodput', story.goodput ? percent(story.goodput.ratio) : ''],
    ['Driver', s.driver ? `process ${s.driver.pid} on ${s.driver.host}` : '']]));
  if (s.hint && s.state !== 'driver lost' && s.state !== 'no answer') parts.push(el('p', { class: 'quiet' }, s.hint));
  if (!report) parts.push(buttons(name, s));
  return card('State', parts);
}
function buttons(name, s) {
  const live = ['running', 'starting', 'paused', 'pausing', 'held'].includes(s.state);
  const make = (id, text, action, enabled, title, why, danger) => el('button', { id, class: danger ? 'danger' : null, disabled: !enabled, onclick: () => confirmed(title, why, text, () => steer(name, action)) }, text);
  return el('div', { class: 'buttons' },
    s.state === 'paused' || s.state === 'pausing'
      ? make('resume', 'Resume', 'resume', true, `Resume ${name}?`, 'It goes on with the next step.')
      : make('pause', 'Pause', 'pause', live, `Pause ${name}?`, 'It holds after this step, and keeps its processes and memory.'),
    make('checkpoint', 'Checkpoint now', 'checkpoint', live, `Take a checkpoint of ${name}?`, 'It is taken after this step.'),
    make('stop', 'Stop', 'stop', live, `Stop ${name}?`, 'It finishes its step, takes a checkpoint and ends. The same command goes on from there.', true),
    el('span', { id: 'answer', role: 'status', class: 'quiet' }, view.answer || ''));
}
function curvesCards(story) {
  const names = Object.keys(story.curves || {});
  if (!names.length) return [card('Metrics', el('p', { class: 'quiet' }, 'The run has not reported a metric yet.'))];
  const first = ['loss', ...names.filter(n => n !== 'steps/s' && n !== 'loss'), 'steps/s'].filter(n => names.includes(n));
  const shown = first.slice(0, 24);
  const result = shown.map(name => card(name === 'steps/s' ? 'Throughput (steps/s)' : name, chart(name, [{ label: name, curve: story.curves[name], colour: '--c0' }]),
    el('p', { class: 'quiet' }, 'last ', num(story.curves[name].values.at(-1)), ', at step ', num(story.curves[name].steps.at(-1)))));
  return [el('div', { class: 'grid', id: 'curves' }, result), first.length > shown.length ? el('p', { class: 'quiet' }, `And ${first.length - shown.length} metrics more: troupe plot RUN NAME.`) : null];
}
function ranksCard(story) {
  const ranks = story.ranks || [];
  if (!ranks.length) return card('Who waits for whom', el('p', { class: 'quiet' }, 'No times yet: workers report about once a second.'));
  const total = Math.max(...ranks.map(r => r.compute_ms + r.wait_ms + r.barrier_ms + r.checkpoint_ms), 1e-9);
  const kinds = [['compute_ms', 'computes', '--c0'], ['wait_ms', 'waits for gradients', '--c1'], ['barrier_ms', 'waits at the barrier', '--c3'], ['checkpoint_ms', 'copies for checkpoints', '--c2']];
  const late = story.late;
  return card('Who waits for whom',
    el('p', { id: 'late' }, late ? `Rank ${late.rank} computes ${late.ratio.toFixed(2)} times as long as the median rank: the others wait for it.` : 'No rank is late: all compute about equally long.'),
    legend(kinds.map(k => [k[1], k[2]])),
    el('div', { class: 'ranks', role: 'list', 'aria-label': 'Time of a step by rank' }, ranks.slice(0, 256).map(r =>
      el('div', { class: 'rank', role: 'listitem', title: kinds.map(k => `${k[1]} ${num(r[k[0]])} ms`).join(', ') + ` (a step; last ${num(r.step)})` },
        el('span', { class: late && late.rank === r.rank ? 'bad state' : '' }, String(r.rank)),
        el('div', { class: 'stack', role: 'img', 'aria-label': kinds.map(k => `${k[1]} ${num(r[k[0]])} ms`).join(', ') }, kinds.map(k => el('span', { style: { width: 100 * r[k[0]] / total + '%', background: `var(${k[2]})` } })))))),
    ranks.length > 256 ? el('p', { class: 'quiet' }, `And ${ranks.length - 256} ranks more.`) : null);
}
// 0–2, 5: for 0, 1, 2 and 5.
function ranges(numbers) {
  const result = [];
  for (const n of [...new Set(numbers.filter(isNumber))].sort((a, b) => a - b))
    if (result.length && result.at(-1)[1] === n - 1) result.at(-1)[1] = n;
    else result.push([n, n]);
  return result.map(([first, last]) => first === last ? first : first + 1 === last ? `${first}, ${last}` : `${first}–${last}`).join(', ');
}
function workersCard(name, story) {
  const live = story.status?.workers, ended = story.result?.workers;
  const members = Array.isArray(live) && live.length ? live : Array.isArray(story.members) && story.members.length && !ended ? story.members : ended || story.members || [];
  const hosts = new Map();
  for (const m of members) { const key = m.host + (m.node && m.node !== 'embedded' ? ' (' + m.node + ')' : ''); hosts.set(key, [...(hosts.get(key) || []), m]); }
  const logs = story.logs || [];
  const rows = [...hosts].map(([host, list]) => el('tr', {}, el('td', {}, host), el('td', { class: 'number' }, list.length),
    el('td', { class: 'long' }, ranges(list.map(m => m.rank)))));
  const chooser = el('select', { id: 'log', 'aria-label': 'Log of a worker', onchange: e => openLog(name, e.target.value) }, el('option', { value: '' }, logs.length ? 'choose a worker’s log' : 'no worker has written anything'),
    logs.slice(0, 512).map(l => el('option', { value: l.worker, selected: view.log === String(l.worker) }, `worker ${l.worker}` + (l.rank !== null ? ` (rank ${l.rank})` : ''))));
  return card('Workers on their hosts', rows.length ? el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Host'), el('th', { scope: 'col', class: 'number' }, 'Workers'), el('th', { scope: 'col' }, 'Ranks'))), el('tbody', {}, rows))) : el('p', { class: 'quiet' }, 'No workers.'),
    report ? null : el('div', { class: 'buttons' }, chooser), view.log !== null && !report ? el('pre', { id: 'log-text', tabindex: 0 }, view.logText || 'This log is empty.') : null);
}
function goodputCard(story) {
  const g = story.goodput;
  if (!g) return card('Goodput', el('p', { class: 'quiet' }, 'The first figure comes after a minute, or at the end of the run.'));
  const lost = Object.entries(g.lost || {}).filter(([, s]) => s > 0.0005).sort((a, b) => b[1] - a[1]);
  return card('Goodput', el('p', {}, el('strong', {}, percent(g.ratio)), ` of ${lasting(g.seconds)} were spent in steps that count` + (g.steps_redone ? `; ${num(g.steps_redone)} steps were computed again.` : '.')),
    el('div', { class: 'bar', role: 'img', 'aria-label': 'Goodput ' + percent(g.ratio) }, el('span', { style: { width: 100 * g.ratio + '%' } })),
    lost.length ? el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Lost to'), el('th', { scope: 'col', class: 'number' }, 'Time'), el('th', { scope: 'col', class: 'number' }, 'Part'))),
      el('tbody', {}, lost.map(([k, s]) => el('tr', {}, el('td', {}, k.replaceAll('_', ' ')), el('td', { class: 'number' }, lasting(s)), el('td', { class: 'number' }, percent(s / g.seconds)))))) : null);
}
function checkpointsCard(story) {
  const list = (story.checkpoints || []).slice(-12).reverse();
  if (!list.length) return card('Checkpoints', el('p', { class: 'quiet' }, 'None yet.'));
  const c = story.counts || {};
  return card('Checkpoints', el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ['Step', 'Size', 'Took', 'At', 'Name'].map((t, i) => el('th', { scope: 'col', class: i < 3 ? 'number' : null }, t)))),
    el('tbody', {}, list.map(k => el('tr', {}, el('td', { class: 'number' }, num(k.step)), el('td', { class: 'number' }, bytes(k.bytes)), el('td', { class: 'number' }, lasting(k.seconds)), el('td', {}, clock(k.time)), el('td', { class: 'long', title: k.path }, lastPart(k.path))))))),
    el('p', { class: 'quiet' }, `${c.checkpoint || 0} saved, ${c.checkpoint_skipped || 0} skipped, ${c.checkpoint_failed || 0} failed. A run keeps its latest; older ones are removed.`));
}
function flat(value, prefix = '') {
  if (value === null || typeof value !== 'object') return [[prefix, value]];
  if (Array.isArray(value)) return [[prefix, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([k, v]) => flat(v, prefix ? prefix + '.' + k : k));
}
function aboutCard(story) {
  const rows = flat(story.about || {});
  if (!rows.length) return null;
  return card('Configuration', el('div', { class: 'scroll' }, el('table', {}, el('tbody', {}, rows.slice(0, 200).map(([k, v]) => el('tr', {}, el('th', { scope: 'row' }, k), el('td', { class: 'long' }, String(v))))))));
}
function runPage(name, story) {
  if (!story) return [el('p', { class: 'quiet' }, 'Loading…')];
  if (story.missing) return [el('p', {}, story.missing)];
  return [causeCard(story), statusCard(name, story), curvesCards(story),
    card('Timeline', timeline(story)),
    el('div', { class: 'grid' }, el('div', {}, ranksCard(story), workersCard(name, story), aboutCard(story)), el('div', {}, goodputCard(story), checkpointsCard(story))),
    (story.sampled || []).length ? el('p', { class: 'quiet' }, `Of ${story.sampled.join(' and ')} only a part was read, because of their size.`) : null];
}

// ---- several runs
function runsPage() {
  const overview = view.overview;
  if (!overview) return [el('p', { class: 'quiet' }, 'Loading…')];
  if (overview.error) return [card('No runs', el('p', {}, overview.error))];
  if (!overview.runs.length)
    return [card('No runs yet', el('p', {}, 'This page shows the runs in ', el('strong', {}, overview.storage), '. There are none. Start one in another terminal:'),
      el('pre', {}, `charlm --storage ${overview.storage}`), el('p', {}, 'It appears here by itself. Your own programs put their runs where their ', el('code', {}, '--storage'), ' says; the dashboard must be given the same directory.'))];
  const rows = overview.runs.map(r => {
    const metric = r.metrics ? ('loss' in r.metrics ? 'loss' : Object.keys(r.metrics)[0]) : undefined;
    const box = el('input', { type: 'checkbox', checked: view.chosen.has(r.name), 'aria-label': 'Compare ' + r.name, onchange: e => { if (e.target.checked) view.chosen.add(r.name); else view.chosen.delete(r.name); draw(); } });
    return el('tr', {}, el('td', {}, box), el('td', { class: 'long' }, el('a', { href: '#run=' + encodeURIComponent(r.name) }, r.name), r.cause && r.state === 'failed' ? el('div', { class: 'bad' }, r.cause) : null),
      el('td', {}, stateText(r.state)), el('td', { class: 'number' }, r.steps ? `${num(r.step)} of ${num(r.steps)}` : num(r.step ?? 0)),
      el('td', { class: 'number' }, metric ? `${metric} ${num(r.metrics[metric])}` : ''), el('td', { class: 'number wide' }, r.state === 'running' && r.samples_per_second ? num(Math.round(r.samples_per_second)) : ''),
      el('td', { class: 'number wide' }, r.workers ?? ''), el('td', { class: 'number wide' }, r.failures || ''), el('td', { class: 'number wide' }, isNumber(r.goodput) ? percent(r.goodput) : ''));
  });
  const heads = [['Compare', ''], ['Run', ''], ['State', ''], ['Step', 'number'], ['Metric', 'number'], ['Samples/s', 'number wide'], ['Workers', 'number wide'], ['Failures', 'number wide'], ['Goodput', 'number wide']];
  const chosen = [...view.chosen].slice(0, 6);
  return [card('Runs', el('div', { class: 'scroll' }, el('table', { id: 'runs' }, el('thead', {}, el('tr', {}, heads.map(([t, c]) => el('th', { scope: 'col', class: c || null }, t)))), el('tbody', {}, rows))),
    el('div', { class: 'buttons' }, el('button', { id: 'compare', disabled: chosen.length < 2, onclick: () => { location.hash = chosen.map(n => 'run=' + encodeURIComponent(n)).join('&'); } }, `Compare ${chosen.length} runs`),
      el('span', { class: 'quiet' }, chosen.length < 2 ? 'Tick two to six runs to lay their curves over each other.' : '')),
    overview.more ? el('p', { class: 'quiet' }, `And ${overview.more} older runs.`) : null)];
}
function comparePage() {
  const known = view.names.filter(n => view.stories.get(n) && !view.stories.get(n).missing);
  const names = [...new Set(known.flatMap(n => Object.keys(view.stories.get(n).curves || {})))];
  const first = ['loss', ...names.filter(n => n !== 'loss' && n !== 'steps/s'), 'steps/s'].filter(n => names.includes(n)).slice(0, 12);
  const colour = n => colours[view.names.indexOf(n) % colours.length];
  const keys = [...new Set(known.flatMap(n => flat(view.stories.get(n).about || {}).map(f => f[0])))];
  const value = (n, k) => (flat(view.stories.get(n).about || {}).find(f => f[0] === k) || [])[1];
  const differing = keys.filter(k => k !== 'name' && new Set(known.map(n => String(value(n, k)))).size > 1);
  const header = el('tr', {}, el('th', { scope: 'col' }, ''), known.map(n => el('th', { scope: 'col' }, el('a', { href: '#run=' + encodeURIComponent(n) }, n))));
  const row = (k, f) => el('tr', {}, el('th', { scope: 'row' }, k), known.map(n => el('td', {}, f(n))));
  return [card('Comparison', legend(known.map(n => [n, colour(n)])), el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, header), el('tbody', {},
      row('State', n => stateText(view.stories.get(n).status?.state)), row('Step', n => num(view.stories.get(n).status?.step ?? 0)),
      row('Failures', n => String(view.stories.get(n).counts?.failure || 0)), row('Goodput', n => view.stories.get(n).goodput ? percent(view.stories.get(n).goodput.ratio) : '–'))))),
    el('div', { class: 'grid' }, first.map(m => card(m, chart(m, known.filter(n => view.stories.get(n).curves?.[m]).map(n => ({ label: n, curve: view.stories.get(n).curves[m], colour: colour(n) })))))),
    card('Configurations that differ', differing.length ? el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, header.cloneNode(true)), el('tbody', {}, differing.map(k => row(k, n => String(value(n, k) ?? '–')))))) : el('p', { class: 'quiet' }, 'None.'))];
}

// ---- drawing: the focus and the scroll of lists survive it
function draw() {
  const focus = document.activeElement?.id, scrolls = ['events', 'log-text'].map(id => [id, document.getElementById(id)?.scrollTop]);
  const name = view.names[0];
  const title = view.names.length > 1 ? 'comparison' : name || '';
  document.getElementById('where').textContent = title ? '/ ' + title : '';
  document.title = (name && view.names.length === 1 ? `${name}: ${view.stories.get(name)?.status?.state || ''}` : title || 'runs') + ' – Troupe';
  document.getElementById('storage').textContent = report ? 'report of ' + (report.status?.path || '') : view.overview?.storage || '';
  const parts = !view.names.length ? runsPage() : view.names.length > 1 ? comparePage() : runPage(name, view.stories.get(name));
  main.replaceChildren(...parts.flat(Infinity).filter(p => p));
  if (focus && document.activeElement?.id !== focus) document.getElementById(focus)?.focus({ preventScroll: true });
  for (const [id, top] of scrolls) if (top) { const found = document.getElementById(id); if (found) found.scrollTop = top; }
}

// ---- the server
let source = null, retry = null;
function tell(text, kind) { const at = document.getElementById('link'); at.textContent = text; at.className = kind || 'quiet'; }
function connect() {
  source?.close();
  clearTimeout(retry);
  source = new EventSource('api/events?' + view.names.map(n => 'run=' + encodeURIComponent(n)).join('&'));
  source.onopen = () => tell('● live', 'good');
  source.addEventListener('runs', e => { view.overview = JSON.parse(e.data); schedule(); });
  source.addEventListener('run', e => { const { name, changes } = JSON.parse(e.data); view.stories.set(name, Object.assign(view.stories.get(name) || {}, changes)); schedule(); });
  source.onerror = () => { tell('○ connection lost; trying again', 'warn'); if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000); };
}
addEventListener('resize', schedule);
let drawing = false;
function schedule() { if (!drawing) { drawing = true; setTimeout(() => { drawing = false; draw(); }, 50); } }
function route() {
  view.names = new URLSearchParams(location.hash.slice(1)).getAll('run').slice(0, 6);
  view.stories.clear(); view.log = null; view.answer = '';
  draw(); connect(); window.scrollTo(0, 0);
}
async function steer(name, action) {
  const answer = await fetch(`api/steer?run=${encodeURIComponent(name)}&do=${action}`, { method: 'POST', headers: { 'X-Troupe-Request': '1' } }).then(r => r.json()).catch(e => ({ error: String(e) }));
  view.answer = answer.error ? 'Refused: ' + answer.error : 'Accepted: ' + action;
  draw();
}
function confirmed(title, text, verb, act) {
  const dialog = document.getElementById('ask'), yes = document.getElementById('ask-yes');
  document.getElementById('ask-title').textContent = title;
  document.getElementById('ask-text').textContent = text;
  yes.textContent = verb;
  yes.onclick = () => { dialog.close(); act(); };
  document.getElementById('ask-no').onclick = () => dialog.close();
  dialog.showModal();
  document.getElementById('ask-no').focus();
}
async function openLog(name, worker) {
  view.log = worker === '' ? null : worker;
  if (view.log !== null) {
    const answer = await fetch(`api/log?run=${encodeURIComponent(name)}&worker=${worker}`).catch(() => null);
    view.logText = answer?.ok ? await answer.text() : 'This log cannot be read.';
  }
  draw();
  const at = document.getElementById('log-text');
  if (at) at.scrollTop = at.scrollHeight;
}

if (report) {
  const name = report.status?.name || report.about?.name || 'run';
  view.names = [name];
  view.stories.set(name, report);
  document.getElementById('home').removeAttribute('href');
  tell('as of ' + new Date(report.made || Date.now()).toLocaleString('en-GB'), 'quiet');
  draw();
} else {
  addEventListener('hashchange', route);
  setInterval(() => { if (view.log !== null && view.names.length === 1 && document.activeElement?.id !== 'log') openLogQuietly(); }, 3000);
  route();
}
async function openLogQuietly() {
  const answer = await fetch(`api/log?run=${encodeURIComponent(view.names[0])}&worker=${view.log}`).catch(() => null);
  if (answer?.ok) { view.logText = await answer.text(); schedule(); }
}
