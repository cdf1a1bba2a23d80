'use strict';
// Attention: every head as a small picture, one head large, and one token's lines to what it saw.
const HALF = new Float32Array(65536);
for (let bits = 0; bits < 65536; ++bits) {
  const exponent = bits >> 10 & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  HALF[bits] = exponent === 0 ? sign * fraction * 2 ** -24 : exponent === 31 ? NaN : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
// Row q has q + 1 weights and begins at q (q + 1) / 2.
function decodePattern(text, n) {
  const bytes = atob(text), out = new Float32Array(n * (n + 1) / 2);
  for (let i = 0; i < out.length; ++i) out[i] = HALF[bytes.charCodeAt(2 * i) | bytes.charCodeAt(2 * i + 1) << 8];
  return out;
}
// 0 is the sheet, 1 the ink; the square root shows small weights.
function weightColour(sheet, ink) {
  return w => {
    const t = Math.sqrt(w);
    return sheet.map((c, i) => Math.round(c + (ink[i] - c) * t));
  };
}
function themeWeight() {
  return weightColour(hex(variable('--sheet')), hex(variable('--ink')));
}

VIEWS.attention = data => {
  const n = data.tokens.length, heads = data.heads;
  if (!heads.length || heads[0].pattern === undefined) return [el('p', {}, word('noPatterns'))];
  const layers = [...new Set(heads.map(head => head.layer))], columns = [...new Set(heads.map(head => head.head))];
  const state = { head: 0, query: n - 1, key: 0 };
  const nodes = { panel: el('div', { class: 'panel', 'aria-live': 'polite' }), title: el('h3', {}) };
  let pattern = decodePattern(heads[0].pattern, n), picture = null;
  const weight = (q, k) => k <= q ? pattern[q * (q + 1) / 2 + k] : 0;
  const name = head => `${word('layer')} ${head.layer} · ${word('head')} ${head.head}`;

  const small = thumbnails(data, layers, columns, state, choose);
  const CELL = Math.max(2, Math.min(44, Math.floor(560 / n))), SIZE = CELL * n;
  const large = surface({ width: SIZE + 1, height: SIZE + 1, viewHeight: 600, label: word('attHint'), paint: paintLarge });
  large.view.style.width = `${Math.min(620, SIZE + 19)}px`;

  // One pixel a weight; made anew for another head or theme.
  function makePicture() {
    const colour = themeWeight(), pixels = new ImageData(n, n);
    for (let q = 0, i = 0; q < n; ++q) {
      for (let k = 0; k <= q; ++k, ++i) pixels.data.set([...colour(pattern[i]), 255], 4 * (q * n + k));
    }
    picture = document.createElement('canvas');
    picture.width = picture.height = n;
    picture.getContext('2d').putImageData(pixels, 0, 0);
  }
  function paintLarge(c, w, h, left, top) {
    if (!picture) makePicture();
    c.fillStyle = variable('--shade');
    c.fillRect(-left, -top, SIZE, SIZE);
    c.imageSmoothingEnabled = false;
    c.drawImage(picture, -left, -top, SIZE, SIZE);
    c.strokeStyle = variable('--cut');
    c.lineWidth = 1;
    c.strokeRect(-left - 0.5, state.query * CELL - top - 0.5, SIZE + 1, CELL + 1);
    c.strokeRect(state.key * CELL - left - 0.5, -top - 0.5, CELL + 1, SIZE + 1);
  }
  page.draws.push(() => { picture = null; large.redraw(); });

  function at(event) {
    const box = large.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left + large.view.scrollLeft) / CELL);
    const query = Math.floor((event.clientY - box.top + large.view.scrollTop) / CELL);
    return key >= 0 && query >= 0 && key < n && query < n ? { query, key } : null;
  }
  large.canvas.addEventListener('mousemove', event => {
    const cell = at(event);
    if (!cell || cell.key > cell.query) return hideTip();
    showTip(event, `${cell.query} «${plain(data.tokens[cell.query])}» → ${cell.key} «${plain(data.tokens[cell.key])}»\n${word('weight')} ${percent(weight(cell.query, cell.key))}`);
  });
  large.canvas.addEventListener('mouseleave', hideTip);
  large.canvas.addEventListener('click', event => {
    const cell = at(event);
    if (cell) select(cell.query, cell.key);
  });
  large.canvas.addEventListener('keydown', event => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    select(state.query + step[0], state.key + step[1]);
  });

  function choose(index) {
    state.head = index;
    pattern = decodePattern(heads[index].pattern, n);
    picture = null;
    select(state.query, state.key);
    small.redraw();
  }
  function select(query, key) {
    state.query = Math.min(n - 1, Math.max(0, query));
    state.key = Math.min(n - 1, Math.max(0, key));
    show();
  }
  const strip = tokenStrip(data.tokens, select, state), table = attentionTable(data, state);
  function show() {
    const head = heads[state.head], q = state.query;
    nodes.title.textContent = name(head);
    const seen = Array.from({ length: q + 1 }, (_, k) => [k, weight(q, k)]).filter(([, w]) => w > 0).sort(byWeight);
    nodes.panel.replaceChildren(...headNodes(data, head, state, seen, weight));
    table.update();
    large.redraw();
    strip.lines(q, seen);
  }
  const csv = () => patternRows(data, heads[state.head], weight);
  show();
  return [
    el('p', { class: 'hint' }, word('attHint')),
    el('div', { class: 'bar-row' }, el('span', {}, `${heads.length} ${word('heads')} · ${n} ${word('tokens')}`),
      scale(w => css(themeWeight()(w)), '0 %', '100 %'), csvButton('attention.csv', csv), pngButton('attention.png', large.canvas)),
    el('div', { class: 'columns' }, el('div', { class: 'pair' }, small.view, el('div', {}, nodes.title, large.view)), nodes.panel),
    strip.view,
    table.node,
  ];
};

const byWeight = (a, b) => b[1] - a[1] || a[0] - b[0];

// What one token saw through one head, and who saw another.
function headNodes(data, head, state, seen, weight) {
  const { query, key } = state, n = data.tokens.length;
  const seers = Array.from({ length: n - key }, (_, i) => [key + i, weight(key + i, key)]).filter(([, w]) => w > 0.001).sort(byWeight);
  const bars = list => list.slice(0, 8).map(([i, w]) => candidate(data.tokens[i], w, percent(w), false));
  const title = (name, i) => [`${word(name)} ${i} `, el('span', { class: 'mono' }, '«', tokenNodes(data.tokens[i]), '»')];
  return [
    el('h3', {}, title('query', query)),
    el('div', { class: 'hint' }, `${word('keys')} · ${word('entropy')} ${fixed(head.entropy[query], 3)} ${word('nats')}`), ...bars(seen),
    el('h3', {}, title('key', key), el('span', { class: 'num' }, `  ${percent(weight(query, key))}`)),
    el('div', { class: 'hint' }, word('seenBy')), ...(seers.length ? bars(seers) : [el('p', {}, word('none'))])];
}
function patternRows(data, head, weight) {
  const rows = [['layer', 'head', 'query', 'query_token', 'key', 'key_token', 'weight']];
  data.tokens.forEach((query, q) => {
    for (let k = 0; k <= q; ++k) rows.push([head.layer, head.head, q, query.piece, k, data.tokens[k].piece, weight(q, k)]);
  });
  return rows;
}

// Every head at a glance: layers down, heads across; each pixel the largest weight beneath it. Drawn
// a few at a time, so that the page answers meanwhile.
function thumbnails(data, layers, columns, state, choose) {
  const LEFT = 60, TOP = 22, n = data.tokens.length;
  const size = Math.max(26, Math.min(64, Math.floor((Math.min(innerWidth, 1400) - 480 - LEFT) / columns.length) - 4)), STEP = size + 4;
  const side = Math.min(size, n), small = new Array(data.heads.length);
  const place = data.heads.map(head => [columns.indexOf(head.head), layers.indexOf(head.layer)]);
  const across = columns.length;
  let pictures = [];
  function reduce(head) {
    const weights = decodePattern(head.pattern, n), out = new Float32Array(side * side);
    for (let q = 0, i = 0; q < n; ++q) {
      const row = Math.floor(q * side / n) * side;
      for (let k = 0; k <= q; ++k, ++i) {
        const to = row + Math.floor(k * side / n);
        if (weights[i] > out[to]) out[to] = weights[i];
      }
    }
    return out;
  }
  function picture(index) {
    if (pictures[index]) return pictures[index];
    const colour = themeWeight(), pixels = new ImageData(side, side);
    small[index].forEach((w, i) => pixels.data.set([...colour(w), 255], 4 * i));
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = side;
    canvas.getContext('2d').putImageData(pixels, 0, 0);
    return pictures[index] = canvas;
  }
  function paint(c, w, h, left, top) {
    c.font = '11px "IBM Plex Mono", ui-monospace, monospace';
    c.textBaseline = 'middle';
    c.imageSmoothingEnabled = false;
    data.heads.forEach((head, index) => {
      const x = LEFT + place[index][0] * STEP - left, y = TOP + place[index][1] * STEP - top;
      if (x + size < LEFT || x > w || y + size < TOP || y > h) return;
      if (small[index]) c.drawImage(picture(index), x, y, size, size);
      c.strokeStyle = index === state.head ? variable('--cut') : variable('--rule');
      c.lineWidth = index === state.head ? 2 : 1;
      c.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    });
    c.fillStyle = variable('--sheet');
    c.fillRect(0, 0, w, TOP - 2);
    c.fillRect(0, 0, LEFT - 2, h);
    c.fillStyle = variable('--muted');
    columns.forEach((head, i) => {
      const x = LEFT + i * STEP - left;
      if (x > LEFT - size / 2) c.fillText(`${head}`, x + size / 2 - 4, TOP / 2);
    });
    layers.forEach((layer, i) => {
      const y = TOP + i * STEP - top + size / 2;
      if (y > TOP) c.fillText(`${word('layer')} ${layer}`, 4, y);
    });
    c.fillStyle = variable('--sheet');
    c.fillRect(0, 0, LEFT - 2, TOP - 2);
  }
  const made = surface({
    width: LEFT + across * STEP + 4, height: TOP + layers.length * STEP + 4, viewHeight: Math.max(430, innerHeight * 0.66),
    label: `${word('heads')}: ${word('attHint')}`, paint,
  });
  made.view.style.width = `${LEFT + across * STEP + 24}px`;
  page.draws.push(() => { pictures = []; });
  let next = 0;
  const some = () => {
    const until = performance.now() + 12;
    while (next < data.heads.length && performance.now() < until) {
      small[next] = reduce(data.heads[next]);
      ++next;
    }
    made.redraw();
    if (next < data.heads.length) setTimeout(some, 0);
    else made.view.dataset.drawn = 'yes';
  };
  setTimeout(some, 0);
  const find = event => {
    const box = made.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left + made.view.scrollLeft - LEFT) / STEP);
    const row = Math.floor((event.clientY - box.top + made.view.scrollTop - TOP) / STEP);
    return place.findIndex(([x, y]) => x === column && y === row);
  };
  made.canvas.addEventListener('click', event => {
    const index = find(event);
    if (index >= 0) choose(index);
  });
  made.canvas.addEventListener('mousemove', event => {
    const index = find(event);
    if (index < 0) return hideTip();
    const head = data.heads[index], mean = head.entropy.reduce((a, b) => a + b, 0) / n;
    showTip(event, `${word('layer')} ${head.layer} · ${word('head')} ${head.head}\n${word('entropy')} ⌀ ${fixed(mean, 2)}`);
  });
  made.canvas.addEventListener('mouseleave', hideTip);
  made.canvas.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
    if (!step) return;
    event.preventDefault();
    const index = state.head + step;
    if (index < 0 || index >= data.heads.length) return;
    const y = place[index][1] * STEP;
    if (y < made.view.scrollTop) made.view.scrollTop = y;
    if (y + STEP > made.view.scrollTop + made.view.clientHeight - TOP) made.view.scrollTop = y + STEP - made.view.clientHeight + TOP;
    choose(index);
  });
  return made;
}

// The tokens twice, and lines from the one that looks to those that it sees.
function tokenStrip(tokens, select, state) {
  const chip = (token, i, action) => el('button', { class: 'chip', title: `${i}  ${describe(token)}`, onclick: () => action(i) }, tokenNodes(token));
  const keys = tokens.map((token, i) => chip(token, i, key => select(state.query, key)));
  const queries = tokens.map((token, i) => chip(token, i, query => select(query, state.key)));
  const picture = svg('svg', { height: 90, width: 10, 'aria-hidden': 'true' });
  const view = el('div', { class: 'strip' }, el('div', { class: 'hint' }, word('key')), el('div', { class: 'row' }, keys), picture,
    el('div', { class: 'row' }, queries), el('div', { class: 'hint' }, word('query')));
  const middle = node => node.offsetLeft - keys[0].offsetLeft + node.offsetWidth / 2;
  let last = null;
  function draw() {
    if (!last || !view.isConnected) return;
    const [query, seen] = last, width = keys[keys.length - 1].offsetLeft - keys[0].offsetLeft + keys[keys.length - 1].offsetWidth + 4;
    picture.setAttribute('width', width);
    picture.replaceChildren(...seen.filter(([, w]) => w >= 0.005).slice(0, 200).map(([key, w]) => svg('line', {
      x1: middle(keys[key]), y1: 2, x2: middle(queries[query]), y2: 88, stroke: 'var(--cut)', 'stroke-opacity': Math.max(0.08, Math.sqrt(w)), 'stroke-width': 0.75 + 3 * w,
    })));
    view.scrollLeft = middle(queries[query]) - view.clientWidth / 2;
    queries.forEach((node, i) => node.setAttribute('aria-current', i === query ? 'true' : 'false'));
    keys.forEach((node, i) => node.setAttribute('aria-current', i === state.key ? 'true' : 'false'));
  }
  new ResizeObserver(draw).observe(view);
  return { view, lines: (query, seen) => { last = [query, seen]; draw(); } };
}

function attentionTable(data, state) {
  const body = el('div', { class: 'scroll' });
  const fill = () => body.replaceChildren(el('table', {},
    el('thead', {}, el('tr', {}, [word('layer'), word('head'), word('entropy'), word('keys')].map(name => el('th', {}, name)))),
    el('tbody', {}, data.heads.map(head => el('tr', {}, el('td', { class: 'n' }, String(head.layer)), el('td', { class: 'n' }, String(head.head)),
      el('td', { class: 'n' }, fixed(head.entropy[state.query], 3)),
      el('td', { class: 'mono' }, head.keys[state.query].map((key, i) => `${key} ${plain(data.tokens[key])} ${percent(head.weights[state.query][i])}`).join(', ')))))));
  const node = el('details', { ontoggle: () => node.open && fill() }, el('summary', {}, word('table')), body);
  return { node, update: () => node.open && fill() };
}
