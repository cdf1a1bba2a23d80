'use strict';
// A recorded run: its tokens, one choice in full, its times, its proof, and the views of a replay.
const piece = id => {
  const known = DATA.pieces?.[id];
  if (known === undefined) return { id, piece: `#${id}` };
  if (typeof known === 'string') return { id, piece: known };
  return { id, piece: '\ufffd', bytes: known };
};
// Tokens as the text that they make: characters that span tokens are whole again.
function textOf(tokens) {
  const bytes = Uint8Array.from(tokens.flatMap(token => token.bytes ?? []));
  return el('p', { class: 'text' }, el('bdi', {}, new TextDecoder().decode(bytes)));
}
const named = token => token.piece === undefined ? { ...token, piece: `#${token.id}` } : token;

VIEWS.report = data => {
  const state = { step: 0 };
  const panel = el('div', { class: 'panel', 'aria-live': 'polite' });
  const chips = data.answer.map((choice, step) => {
    const token = named(choice.token), p = choice.prob;
    const rgb = p === null ? null : certainty(p);
    return el('button', {
      class: 'chip', title: `${step}  ${describe(token)}${p === null ? '' : `\n${word('prob')} ${percent(p)}`}`,
      style: rgb ? { background: css(rgb), color: inkOn(rgb) } : {}, tabindex: step === 0 ? 0 : -1, onclick: () => go(step),
    }, tokenNodes(token));
  });
  const answer = el('div', { class: 'chips', id: 'answer', onkeydown: event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!step || !chips.length) return;
    event.preventDefault();
    go(state.step + step);
    chips[state.step].focus();
  } }, chips);
  function go(step) {
    state.step = Math.min(data.answer.length - 1, Math.max(0, step));
    chips.forEach((chip, i) => {
      chip.setAttribute('aria-current', i === state.step ? 'true' : 'false');
      chip.tabIndex = i === state.step ? 0 : -1;
    });
    if (chips.length) panel.replaceChildren(...choiceNodes(data.answer[state.step]));
  }
  go(0);
  const section = (key, ...children) => [el('h2', { id: key }, word(key)), ...children];
  const views = ['lens', 'attention'].filter(key => data[key]);
  return [
    el('nav', {}, ['answer', 'proof', 'time', 'trace', ...views, 'settings'].map(key => el('a', { href: `#${key}` }, word(key)))),
    leftOut(data),
    ...section('prompt', textOf(data.prompt), el('div', { class: 'chips' }, data.prompt.map((token, i) => el('span', { class: 'chip prompt', title: `${i}  ${describe(named(token))}` }, tokenNodes(named(token)))))),
    ...section('answer', textOf(data.answer.map(choice => choice.token)), el('p', { class: 'hint' }, word('pick')),
      el('div', { class: 'bar-row' }, `${word('certaintyOf')} `, scale(p => css(certainty(p)), '0 %', '100 %')), answer),
    ...section('choice', panel),
    ...section('proof', proof(data)),
    ...section('time', ...times(data)),
    ...section('trace', ...traceNodes(data)),
    ...views.flatMap(key => section(key, ...VIEWS[key](data[key]))),
    ...section('settings', settings(data)),
  ].filter(Boolean);
};

function leftOut(data) {
  if (!data.left_out.length) return null;
  return el('div', { class: 'panel' }, el('h3', {}, word('leftOut')), data.left_out.map(part =>
    el('p', {}, `${word('parts')[part.what] ?? part.what}: ${part.shown} / ${part.of} · ${word('all')}: `, el('code', {}, part.how))));
}

// ---- one choice ---------------------------------------------------------------------------------
function choiceNodes(choice) {
  const ledger = choice.ledger, token = named(choice.token);
  const head = el('h3', {}, `${word('step')} ${choice.step} · ${word('position')} ${choice.position} `, el('span', { class: 'mono' }, '«', tokenNodes(token), '»'));
  if (!ledger || !ledger.raw) return [head, el('p', {}, word('noLedger'))];
  const chosen = ledger.chosen, list = ledger.raw.top.map(entry => ({ ...entry, prob: Math.exp(entry.logprob) }));
  const shown = list.some(entry => entry.id === chosen.id) ? list : [...list, { id: chosen.id, prob: chosen.raw_prob }];
  return [
    head,
    el('div', { class: 'columns', style: { gridTemplateColumns: 'repeat(auto-fit, minmax(300px, 1fr))' } },
      el('div', {}, el('h3', {}, word('candidates')), shown.map(entry => candidate(piece(entry.id), entry.prob, percent(entry.prob), entry.id === chosen.id)),
        el('p', { class: 'hint num' }, `${word('entropy')} ${fixed(ledger.raw.entropy, 3)} ${word('nats')} · ${word('rank')} ${chosen.rank}`)),
      el('div', {}, el('h3', {}, word('stages')), ...stageNodes(ledger), ...drawNodes(ledger))),
  ];
}
function stageNodes(ledger) {
  const notes = [];
  if (ledger.forced) notes.push(el('p', {}, word('forced')));
  if (ledger.mask) notes.push(el('p', {}, `${word('banned')}: ${percent(ledger.mask.removed_mass)} ${word('mass')}`));
  if (!ledger.stages.length) return [...notes, el('p', {}, word('none'))];
  return [...notes, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, word('stage')), el('th', { class: 'n' }, word('before')), el('th', { class: 'n' }, word('after')), el('th', {}, word('removed')))),
    el('tbody', {}, ledger.stages.map(stage => {
      const gone = stage.before.mass - stage.after.mass;
      return el('tr', {},
        el('td', {}, stage.name, el('div', { class: 'hint num' }, Object.entries(stage.params).map(([key, value]) => `${key} ${typeof value === 'object' ? JSON.stringify(value) : typeof value === 'number' ? Number(value.toPrecision(6)) : value}`).join(', '))),
        el('td', { class: 'n' }, String(stage.before.count)), el('td', { class: 'n' }, String(stage.after.count)),
        el('td', {}, gone > 0 ? el('div', { class: 'num' }, `${percent(gone)} ${word('mass')}`) : null,
          el('span', { class: 'mono hint' }, stage.removed.slice(0, 6).map(entry => plain(piece(entry.id))).join('  '))));
    })))];
}
// The cumulative line of the last distribution: the chosen token's part, and where the number fell.
function drawNodes(ledger) {
  const [begin, end] = ledger.draw.interval, u = ledger.draw.u;
  const head = el('h3', {}, word('draw'));
  if (u === null) return [head, el('p', {}, word('greedy'))];
  const rgb = certainty(ledger.chosen.prob);
  return [head,
    el('div', { class: 'line', role: 'img', 'aria-label': `${word('drawn')}: ${u}` },
      el('div', { class: 'part', style: { left: `${100 * begin}%`, width: `${100 * (end - begin)}%`, background: css(rgb), color: inkOn(rgb) } }, plain(piece(ledger.chosen.id))),
      el('div', { class: 'draw', style: { left: `${100 * u}%` } })),
    el('p', { class: 'hint num' }, `${word('drawn')}: ${fixed(begin, 6)} ≤ ${fixed(u, 6)} < ${fixed(end, 6)}`),
    el('p', { class: 'hint num' }, `${word('rawProb')} ${percent(ledger.chosen.raw_prob)} · ${word('finalProb')} ${percent(ledger.chosen.prob)}`)];
}

// ---- proof, times, settings ------------------------------------------------------------------------
function proof(data) {
  const replay = data.replay;
  if (!replay) return el('div', { class: 'proof bad' }, el('p', {}, `${word('notProved')}. ${word('noModel')}: ${data.without_model}`));
  const compared = `${word('compared')}: ${replay.compared.hashes} ${word('hashes')}, ${replay.compared.positions} ${word('positions')}, ${replay.compared.choices} ${word('choices')}`;
  return el('div', { class: replay.equal ? 'proof' : 'proof bad' },
    el('p', {}, el('strong', {}, word(replay.equal ? 'equal' : 'notEqual')), `. ${compared}.`),
    replay.difference ? el('p', {}, `${replay.difference.why} `, el('code', {}, JSON.stringify(replay.difference))) : null,
    el('p', { class: 'hint num' }, `kernels ${replay.kernels.recorded} → ${replay.kernels.here} · logits_hash ${data.run.logits_hash ?? ''}`));
}
function times(data) {
  const times = data.answer.map(choice => choice.ms ?? 0), total = Math.max(...times, data.run.timings?.total_ms ?? 0);
  if (!times.some(ms => ms > 0) || !(total > 0)) return [el('p', {}, word('noTimes'))];
  const rail = el('div', { class: 'rail', role: 'img', 'aria-label': `${word('total')} ${fixed(total, 0)} ms` });
  let from = 0;
  data.answer.forEach((choice, i) => {
    const to = Math.max(choice.ms, from), rgb = choice.prob === null ? [140, 140, 140] : certainty(choice.prob), begin = from;
    rail.append(el('div', {
      class: 'seg', style: { left: `${100 * begin / total}%`, width: `max(1px, ${100 * (to - begin) / total}%)`, background: i === 0 ? 'var(--shade)' : css(rgb) },
      onmousemove: event => showTip(event, `${i === 0 ? `${word('prompt')} + ` : ''}${plain(named(choice.token))}  ${fixed(begin, 1)} – ${fixed(to, 1)} ms (${fixed(to - begin, 1)} ms)`), onmouseleave: hideTip,
    }));
    from = to;
  });
  const steps = times.slice(1).map((ms, i) => ms - times[i]).sort((a, b) => a - b);
  const middle = steps.length ? `${fixed(steps[0], 1)} / ${fixed(steps[Math.floor(steps.length / 2)], 1)} / ${fixed(steps[steps.length - 1], 1)} ms` : '';
  return [rail, el('dl', {}, el('dt', {}, word('ttft')), el('dd', { class: 'num' }, `${fixed(times[0], 1)} ms`), el('dt', {}, `${word('each')} (min / median / max)`),
    el('dd', { class: 'num' }, middle), el('dt', {}, word('total')), el('dd', { class: 'num' }, `${fixed(total, 1)} ms`))];
}
function settings(data) {
  const rows = [];
  const walk = (object, prefix) => Object.entries(object).forEach(([key, value]) => {
    if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length) walk(value, `${prefix}${key}.`);
    else rows.push(el('dt', {}, prefix + key), el('dd', { class: 'mono' }, typeof value === 'string' ? value : JSON.stringify(value)));
  });
  const { text, timings, ...rest } = data.run;
  walk(rest, '');
  return el('dl', {}, rows);
}

build();
