'use strict';
// The run's own trace as a timeline: a row for each depth of each thread, and one span in full.
const ROW = 20, AXIS = 22, MOST_ZOOM = 4096;
const PHASE_COLOURS = {
  startup: [150, 144, 134], request: [176, 168, 152], prompt: [214, 155, 74], prefill: [58, 132, 128],
  generate: [66, 98, 164], respond: [156, 88, 134],
};
const phaseColour = phase => PHASE_COLOURS[phase] ?? [140, 140, 140];
const duration = us => us >= 1e6 ? `${fixed(us / 1e6, 2)} s` : us >= 1e3 ? `${fixed(us / 1e3, us >= 1e5 ? 0 : 2)} ms` : `${fixed(us, us >= 10 ? 0 : 1)} µs`;

// Spans from the lines: begun by an enter, ended by its exit. One without an exit was open at the end.
function spansOf(lines) {
  const spans = [], open = new Map();
  let end = 0, begin = Infinity;
  const add = (line, depth, start, us, parent) => {
    const span = { index: spans.length, name: line.name, phase: line.phase, thread: line.thread, step: line.step, layer: line.layer,
      position: line.position, depth, start, us, parent, inside: 0, in: null, out: null, event: line.kind === 'event', ended: true };
    spans.push(span);
    return span;
  };
  for (const line of lines) {
    if (!open.has(line.thread)) open.set(line.thread, []);
    const stack = open.get(line.thread), parent = stack[stack.length - 1] ?? null;
    end = Math.max(end, line.t_us);
    begin = Math.min(begin, line.t_us - (line.duration_us ?? 0));
    if (line.kind === 'enter') {
      const span = add(line, stack.length, line.t_us, 0, parent);
      span.in = line.fields;
      span.ended = false;
      stack.push(span);
    } else if (line.kind === 'exit') {
      let span = stack.length && parent.name === line.name ? stack.pop() : add(line, stack.length, line.t_us - line.duration_us, 0, parent);
      Object.assign(span, { us: line.duration_us, out: line.fields, ended: true });
      if (span.parent) span.parent.inside += span.us;
    } else {
      add(line, stack.length, line.t_us, 0, parent).out = line.fields;
    }
  }
  for (const span of spans) if (!span.ended) span.us = end - span.start;
  return { spans, begin: Number.isFinite(begin) ? begin : 0, end };
}

function traceNodes(data) {
  const lines = data.trace;
  if (!lines) return [el('p', {}, word('noTrace')), el('p', { class: 'hint' }, `${word('noTraceHas')}: ${data.answer.filter(choice => choice.ms > 0).length} × ms`)];
  const { spans, begin, end } = spansOf(lines);
  if (!spans.length) return [el('p', {}, word('noTrace'))];
  const total = Math.max(1e-3, end - begin);
  const threads = [...new Set(spans.map(span => span.thread))].sort((a, b) => a - b);
  const first = new Map();
  let rows = 0;
  for (const thread of threads) {
    first.set(thread, rows);
    rows += 1 + spans.reduce((most, span) => span.thread === thread ? Math.max(most, span.depth) : most, 0);
  }
  const rowOf = span => first.get(span.thread) + span.depth;
  const byRow = Array.from({ length: rows }, () => []);
  for (const span of spans) byRow[rowOf(span)].push(span);
  for (const row of byRow) row.sort((a, b) => a.start - b.start);
  const state = { zoom: 1, at: spans[0], shown: null };
  const panel = el('div', { class: 'panel', 'aria-live': 'polite' }), place = el('div', {});
  const width = () => Math.max(320, place.clientWidth || 900) - 2;

  function paint(c, w, h, left, top) {
    const per = width() * state.zoom / total, ink = variable('--ink'), muted = variable('--muted'), sheet = variable('--sheet');
    c.font = '11px "IBM Plex Mono", "Noto Sans Mono CJK KR", ui-monospace, monospace';
    c.textBaseline = 'middle';
    byRow.forEach((row, r) => {
      const y = AXIS + r * ROW - top;
      if (y + ROW < AXIS || y > h) return;
      let drawn = -1;  // spans narrower than a pixel are drawn once a pixel
      for (const span of row) {
        const x = (span.start - begin) * per - left, size = Math.max(1, span.us * per);
        if (x > w) break;
        if (x + size < 0 || (size <= 1 && Math.floor(x) === drawn && span !== state.at)) continue;
        drawn = Math.floor(x);
        const rgb = phaseColour(span.phase);
        c.fillStyle = css(rgb);
        c.fillRect(x, y + 1, Math.max(1, size - 0.5), ROW - 2);
        if (size > 26) {
          const from = Math.max(x, 0), room = Math.min(x + size, w) - from - 6;
          c.save();
          c.beginPath();
          c.rect(from, y, Math.max(0, room + 4), ROW);
          c.clip();
          c.fillStyle = inkOn(rgb);
          c.fillText(labelOf(span), from + 4, y + ROW / 2);
          c.restore();
        }
      }
    });
    c.fillStyle = sheet;
    c.fillRect(0, 0, w, AXIS);
    c.fillStyle = muted;
    const step = niceStep(90 / per);
    for (let t = Math.floor(left / per / step) * step; t * per - left < w; t += step) {
      const x = t * per - left;
      c.fillRect(x, AXIS - 5, 1, 5);
      c.fillText(t === 0 ? '0' : duration(t), x + 3, AXIS / 2);
    }
    const span = state.at, x = (span.start - begin) * per - left, y = AXIS + rowOf(span) * ROW - top;
    c.strokeStyle = variable('--cut');
    c.lineWidth = 2;
    c.strokeRect(x, y + 1, Math.max(2, span.us * per), ROW - 2);
    c.fillStyle = ink;
  }
  const labelOf = span => {
    const choice = span.name.endsWith('Decoder::token') && span.step !== undefined ? data.answer[span.step] : null;
    return choice ? `${span.step} «${plain(named(choice.token))}»` : `${span.name}${span.layer === undefined ? '' : ` l${span.layer}`}`;
  };
  function find(event) {
    const box = state.shown.canvas.getBoundingClientRect(), view = state.shown.view, per = width() * state.zoom / total;
    const row = byRow[Math.floor((event.clientY - box.top + view.scrollTop - AXIS) / ROW)];
    const x = event.clientX - box.left + view.scrollLeft;
    return row?.filter(span => x >= (span.start - begin) * per - 1 && x <= (span.start - begin + span.us) * per + 1).pop();
  }
  function select(span, scroll) {
    state.at = span;
    panel.replaceChildren(...spanNodes(span, labelOf(span), begin));
    if (scroll) {
      const view = state.shown.view, per = width() * state.zoom / total, x = (span.start - begin) * per;
      if (x < view.scrollLeft || x > view.scrollLeft + view.clientWidth - 60) view.scrollLeft = x - view.clientWidth / 3;
      const y = rowOf(span) * ROW;
      if (y < view.scrollTop || y + 2 * ROW + AXIS > view.scrollTop + view.clientHeight) view.scrollTop = y - view.clientHeight / 2;
    }
    state.shown.redraw();
  }
  function zoom(by) {
    const middle = (state.at.start - begin + state.at.us / 2) / total;
    state.zoom = Math.min(MOST_ZOOM, Math.max(1, state.zoom * by));
    show();
    state.shown.view.scrollLeft = middle * width() * state.zoom - state.shown.view.clientWidth / 2;
    state.shown.canvas.focus({ preventScroll: true });
  }
  function key(event) {
    const row = byRow[rowOf(state.at)], i = row.indexOf(state.at);
    const to = { ArrowLeft: row[i - 1], ArrowRight: row[i + 1], ArrowUp: state.at.parent,
      ArrowDown: spans.find(span => span.parent === state.at) }[event.key];
    if (event.key === '+' || event.key === '=' || event.key === '-') {
      event.preventDefault();
      zoom(event.key === '-' ? 0.5 : 2);
    } else if (event.key.startsWith('Arrow')) {
      event.preventDefault();
      if (to) select(to, true);
    }
  }
  function show() {
    const shown = surface({ width: Math.round(width() * state.zoom), height: AXIS + rows * ROW, viewHeight: 420, label: word('traceHint'), paint });
    shown.view.style.overflowAnchor = 'none';
    shown.canvas.addEventListener('keydown', key);
    shown.canvas.addEventListener('click', event => { const span = find(event); if (span) select(span, false); });
    shown.canvas.addEventListener('mousemove', event => { const span = find(event); if (span) showTip(event, `${labelOf(span)}  ${duration(span.us)}`); else hideTip(); });
    shown.canvas.addEventListener('mouseleave', hideTip);
    if (state.shown) page.draws.splice(page.draws.indexOf(state.shown.redraw), 1);
    state.shown = shown;
    place.replaceChildren(shown.view);
  }
  show();
  select(state.at, false);
  // The width is known once the page is laid out.
  requestAnimationFrame(() => { show(); state.shown.redraw(); });
  const phases = [...new Set(spans.map(span => span.phase))];
  return [
    el('p', { class: 'hint' }, word('traceHint')),
    el('div', { class: 'bar-row' }, phases.map(phase => el('span', {}, el('span', { class: 'swatch', style: { background: css(phaseColour(phase)) } }), ` ${phase}`)),
      el('button', { onclick: () => zoom(2), 'aria-label': word('zoomIn') }, '+'), el('button', { onclick: () => zoom(0.5), 'aria-label': word('zoomOut') }, '−')),
    place, panel, functionTable(spans, data),
  ];
}
function niceStep(us) {
  const ten = 10 ** Math.floor(Math.log10(us));
  return [1, 2, 5, 10].map(n => n * ten).find(step => step >= us);
}
function spanNodes(span, label, begin) {
  const place = ['step', 'position', 'layer'].filter(key => span[key] !== undefined).map(key => `${word(key)} ${span[key]}`).join(' · ');
  const fields = object => Object.entries(object ?? {}).map(([key, value]) => `${key}=${typeof value === 'object' ? JSON.stringify(value) : plain({ piece: String(value) })}`).join('  ');
  return [
    el('h3', {}, el('bdi', { class: 'mono' }, label)),
    el('p', { class: 'num' }, `${span.phase} · ${duration(span.start - begin)} + ${span.event ? '' : duration(span.us)}${span.ended ? '' : ' …'}${span.inside ? ` (${word('self')} ${duration(span.us - span.inside)})` : ''}${place ? ` · ${place}` : ''}`),
    span.in && Object.keys(span.in).length ? el('p', { class: 'mono hint' }, 'IN ', el('bdi', {}, fields(span.in))) : null,
    span.out && Object.keys(span.out).length ? el('p', { class: 'mono hint' }, 'OUT ', el('bdi', {}, fields(span.out))) : null,
  ].filter(Boolean);
}
// Calls and times by function: for reading aloud, and for copying.
function functionTable(spans, data) {
  const totals = new Map();
  for (const span of spans) {
    if (span.event) continue;
    const of = totals.get(span.name) ?? { name: span.name, phase: span.phase, calls: 0, us: 0, self: 0 };
    of.calls += 1;
    of.us += span.us;
    of.self += span.us - span.inside;
    totals.set(span.name, of);
  }
  const rows = [...totals.values()].sort((a, b) => b.self - a.self);
  const head = [word('function'), word('calls'), word('total'), word('self')];
  return el('details', {}, el('summary', {}, word('byFunction')), csvButton('trace.csv', () => [['function', 'calls', 'total_us', 'self_us'], ...rows.map(row => [row.name, row.calls, row.us, row.self])]),
    el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, head.map((name, i) => el('th', i ? { class: 'n' } : {}, name)))),
      el('tbody', {}, rows.map(row => el('tr', {}, el('td', { class: 'mono' }, row.name), el('td', { class: 'n' }, String(row.calls)), el('td', { class: 'n' }, duration(row.us)), el('td', { class: 'n' }, duration(row.self))))))));
}
