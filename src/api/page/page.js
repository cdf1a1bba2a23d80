'use strict';
// What every page shares: words in two languages, both themes, tokens as people can read them, and a
// drawing surface that holds only what is on the screen.
const DATA = JSON.parse(document.getElementById('data').textContent);
const WORDS = {
  en: {
    lens: 'When did it know?', attention: 'Where did it look?', report: 'How did this answer come about?',
    theme: 'Theme', light: 'Light', dark: 'Dark', system: 'As the system', other: '한국어',
    tokens: 'tokens', layers: 'layers', heads: 'heads', layer: 'layer', head: 'head', position: 'position',
    embedding: 'embedding', entropy: 'entropy', nats: 'nats', prob: 'probability', logit: 'logit', rank: 'rank',
    kl: 'distance from the last layer (KL)', next: 'came next', lastSays: 'last layer says', said: 'would have said', table: 'As a table', csv: 'Save CSV', png: 'Save picture',
    lensHint: 'Each cell: the most probable token, had the model ended after that layer. Click one, or use the arrow keys.',
    colourBy: 'Colour', byTop: 'probability of the first token', byLast: 'probability of what the last layer says',
    byNext: 'probability of what came next', low: 'low', high: 'high', none: 'none', end: 'the text ends here',
    attHint: 'Each square is a head: rows are queries, columns the keys that they looked at. Click a head, then a token.',
    query: 'looks from', key: 'at', keys: 'Where it looks most', seenBy: 'Who looks here', noPatterns: 'This document has no matrices.',
    weight: 'weight', special: 'special', bytes: 'bytes',
    prompt: 'Prompt', answer: 'Answer', choice: 'Why this token?', proof: 'Is it proved?', settings: 'Settings and hashes', time: 'Where did the time go?',
    certaintyOf: 'Colour: how certain the model was', pick: 'Click a token of the answer, or use the arrow keys, to see how it was chosen.',
    noLedger: 'This choice is not shown in this page.', stages: 'What each stage did', removed: 'removed', mass: 'of the mass', left: 'left', candidates: 'The model said',
    draw: 'The draw', drawn: 'The number fell into the interval of the chosen token', greedy: 'Nothing was drawn: the most probable token was taken.',
    rawProb: 'by the model', finalProb: 'after the stages', equal: 'Computed again and the same to the bit', notEqual: 'Not the same',
    notProved: 'Not computed again', compared: 'compared', hashes: 'layer hashes', positions: 'positions', choices: 'choices', leftOut: 'What was left out', all: 'all of it',
    parts: { ledgers: 'choices with their ledgers', 'lens positions': 'positions of the lens', 'attention layers': 'layers of the attention', 'trace lines': 'lines of the trace' },
    trace: 'What ran when?', traceHint: 'Each bar is a function: its length is its time, those below ran inside it. Click one, or use the arrow keys; + and − zoom.',
    noTrace: 'This recording holds no spans: it was made with --record-trace off, or before recordings kept them.', noTraceHas: 'What it has of times is above',
    self: 'itself', calls: 'calls', function: 'function', byFunction: 'By function, as a table', zoomIn: 'Zoom in', zoomOut: 'Zoom out',
    noModel: 'The model is not here, so that nothing was computed again', ttft: 'to the first token', total: 'in all', each: 'each token', noTimes: 'This recording holds no times.',
    stage: 'stage', before: 'before', after: 'after', step: 'step', finish: 'ended by', forced: 'This token was forced', banned: 'Tokens were forbidden', madeBy: 'Made by Cutaway. This page asks the network for nothing.',
  },
  ko: {
    lens: '언제 알았을까?', attention: '어디를 보았을까?', report: '이 답은 어떻게 나왔을까?',
    theme: '테마', light: '밝게', dark: '어둡게', system: '시스템 설정', other: 'English',
    tokens: '토큰', layers: '층', heads: '헤드', layer: '층', head: '헤드', position: '위치',
    embedding: '임베딩', entropy: '엔트로피', nats: '내트', prob: '확률', logit: '로짓', rank: '순위',
    kl: '마지막 층과의 거리 (KL)', next: '실제로 이어진 토큰', lastSays: '마지막 층의 선택', said: '말했을 토큰', table: '표로 보기', csv: 'CSV 저장', png: '그림 저장',
    lensHint: '각 칸은 모델이 그 층에서 끝났다면 가장 유력했을 토큰입니다. 칸을 누르거나 화살표 키로 움직이세요.',
    colourBy: '색', byTop: '첫 번째 토큰의 확률', byLast: '마지막 층이 고른 토큰의 확률',
    byNext: '실제로 이어진 토큰의 확률', low: '낮음', high: '높음', none: '없음', end: '여기서 글이 끝납니다',
    attHint: '네모 하나가 헤드 하나입니다. 행은 보는 토큰, 열은 보이는 토큰입니다. 헤드를 누르고 토큰을 고르세요.',
    query: '보는 토큰', key: '보이는 토큰', keys: '가장 많이 본 곳', seenBy: '여기를 본 토큰', noPatterns: '이 문서에는 행렬이 없습니다.',
    weight: '가중치', special: '특수', bytes: '바이트',
    prompt: '프롬프트', answer: '답', choice: '왜 이 토큰일까?', proof: '증명되었나?', settings: '설정과 해시', time: '시간은 어디에 쓰였을까?',
    certaintyOf: '색: 모델이 얼마나 확신했는가', pick: '답의 토큰을 누르거나 화살표 키로 움직이면 어떻게 선택되었는지 보입니다.',
    noLedger: '이 선택은 이 페이지에 없습니다.', stages: '각 단계가 한 일', removed: '제거', mass: '확률 질량', left: '남음', candidates: '모델의 의견',
    draw: '추첨', drawn: '난수가 선택된 토큰의 구간에 들어갔습니다', greedy: '추첨 없이 가장 유력한 토큰을 골랐습니다.',
    rawProb: '모델의 확률', finalProb: '단계를 거친 뒤', equal: '다시 계산했고, 비트까지 같습니다', notEqual: '같지 않습니다',
    notProved: '다시 계산하지 않았습니다', compared: '비교한 것', hashes: '층 해시', positions: '위치', choices: '선택', leftOut: '빠진 것', all: '전부 보려면',
    parts: { ledgers: '장부가 있는 선택', 'lens positions': '렌즈의 위치', 'attention layers': '어텐션의 층', 'trace lines': '추적의 줄' },
    trace: '무엇이 언제 실행되었을까?', traceHint: '막대 하나가 함수 하나이고, 길이가 걸린 시간입니다. 아래 막대는 그 안에서 실행된 것입니다. 누르거나 화살표 키로 움직이고, +와 −로 확대합니다.',
    noTrace: '이 기록에는 구간이 없습니다. --record-trace off로 만들었거나 그 전에 만든 기록입니다.', noTraceHas: '이 기록의 시간은 위에 있습니다',
    self: '자체', calls: '호출', function: '함수', byFunction: '함수별로 표로 보기', zoomIn: '확대', zoomOut: '축소',
    noModel: '모델이 없어 다시 계산하지 못했습니다', ttft: '첫 토큰까지', total: '전체', each: '토큰마다', noTimes: '이 기록에는 시간이 없습니다.',
    stage: '단계', before: '전', after: '후', step: '순서', finish: '끝난 까닭', forced: '강제로 정한 토큰입니다', banned: '금지된 토큰이 있습니다', madeBy: 'Cutaway가 만들었습니다. 이 페이지는 네트워크를 쓰지 않습니다.',
  },
};
const page = {
  lang: (navigator.language || 'en').toLowerCase().startsWith('ko') ? 'ko' : 'en',
  theme: 'system',
  draws: [],  // what a change of theme draws again
};
const word = key => WORDS[page.lang][key] ?? WORDS.en[key] ?? key;

// ---- elements: text only ever becomes text nodes ------------------------------------------------
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') Object.assign(node.style, value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}
function svg(tag, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// ---- numbers ------------------------------------------------------------------------------------
const percent = p => p >= 0.9995 ? '100 %' : p >= 0.0995 ? (100 * p).toFixed(1) + ' %' : p >= 1e-4 ? (100 * p).toFixed(2) + ' %'
  : p > 0 ? (100 * p).toExponential(0) + ' %' : '0 %';
const fixed = (x, digits) => Number.isFinite(x) ? x.toFixed(digits) : String(x);

// ---- colours: certainty runs from amber (low) to deep blue (high), ordered in lightness -----------
const STOPS = [[246, 190, 79], [219, 160, 104], [163, 134, 150], [93, 108, 165], [24, 58, 122]];
function certainty(p) {
  const x = Math.min(1, Math.max(0, p)) * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(x)), t = x - i;
  return STOPS[i].map((c, k) => Math.round(c + (STOPS[i + 1][k] - c) * t));
}
const css = rgb => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
const linear = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = rgb => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
const inkOn = rgb => luminance(rgb) > 0.18 ? '#14130f' : '#ffffff';
const variable = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Attention: from the sheet to the ink, so that 0 is the paper in both themes.
function hex(text) {
  return [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
}
function paintScale(canvas, colour) {
  const c = canvas.getContext('2d');
  for (let x = 0; x < canvas.width; ++x) {
    c.fillStyle = colour(x / (canvas.width - 1));
    c.fillRect(x, 0, 1, canvas.height);
  }
}
function scale(colour, low, high) {
  const canvas = el('canvas', { class: 'scale', width: 120, height: 10, 'aria-hidden': 'true' });
  const draw = () => paintScale(canvas, colour);
  page.draws.push(draw);
  draw();
  return el('span', {}, low + ' ', canvas, ' ' + high);
}

// ---- tokens -------------------------------------------------------------------------------------
// What a token is to a reader: a list of [text, class]. White space and control characters get marks,
// characters that reorder text their number, bytes that are no character their hexadecimal digits.
function parts(token) {
  const piece = token.piece ?? '';
  if (piece.includes('\ufffd') && token.bytes) {
    return [[token.bytes.map(b => b.toString(16).toUpperCase().padStart(2, '0')).join(' '), 'code']];
  }
  const out = [];
  const push = (text, kind) => {
    if (out.length && out[out.length - 1][1] === kind) out[out.length - 1][0] += text;
    else out.push([text, kind]);
  };
  for (const c of piece) {
    const n = c.codePointAt(0);
    if (c === ' ') push('·', 'mark');
    else if (c === '\n') push('⏎', 'mark');
    else if (c === '\t') push('⇥', 'mark');
    else if (/[\p{C}\p{Z}]/u.test(c)) {  // controls, marks of direction, spaces of other kinds
      push('U+' + n.toString(16).toUpperCase().padStart(4, '0'), 'code');
    } else push(c, '');
  }
  return out.length ? out : [['∅', 'mark']];
}
const plain = token => parts(token).map(part => part[0]).join('');
function tokenNodes(token) {
  return parts(token).map(([text, kind]) => el('bdi', kind ? { class: kind } : {}, text));
}
function describe(token) {
  const bytes = token.bytes ? `\n${word('bytes')} ${token.bytes.map(b => b.toString(16).padStart(2, '0')).join(' ')}` : '';
  return `${plain(token)}   #${token.id}${token.special ? ` ${word('special')}` : ''}${bytes}`;
}
function candidate(token, share, label, chosen, most = 1) {
  return el('div', { class: chosen ? 'cand chosen' : 'cand', title: describe(token) },
    el('span', { class: 'mono' }, tokenNodes(token)),
    el('span', { class: 'track' }, el('span', { class: 'fill', style: { display: 'block', width: `${100 * Math.min(1, share / most)}%` } })),
    el('span', { class: 'num' }, label));
}

// ---- a tip that follows the pointer ---------------------------------------------------------------
const tip = el('div', { class: 'tip', role: 'status', 'aria-hidden': 'true' });
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = 'block';
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18)}px`;
}
const hideTip = () => { tip.style.display = 'none'; };

// ---- a canvas of the size of its view over a world of any size --------------------------------------
// paint(context, width, height, left, top) draws what is visible.
function surface({ width, height, viewHeight, label, paint }) {
  const canvas = el('canvas', { tabindex: 0, role: 'img', 'aria-label': label });
  const spacer = el('div', { style: { width: `${width}px`, height: `${height}px`, marginTop: '0' } });
  const view = el('div', { class: 'view', style: { height: `${Math.min(viewHeight, height + 18)}px` } }, canvas, spacer);
  let asked = false;
  function draw() {
    asked = false;
    const ratio = window.devicePixelRatio || 1, w = view.clientWidth, h = view.clientHeight;
    if (w === 0 || h === 0) return;
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
    spacer.style.marginTop = `${-h}px`;
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, w, h);
    paint(context, w, h, view.scrollLeft, view.scrollTop);
  }
  const redraw = () => {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  };
  view.addEventListener('scroll', redraw);
  new ResizeObserver(redraw).observe(view);
  page.draws.push(redraw);
  return { view, canvas, redraw };
}

function save(name, blob) {
  const link = el('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function csvButton(name, rows) {
  const quote = value => /[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return el('button', { onclick: () => save(name, new Blob(['\ufeff', rows().map(row => row.map(quote).join(',')).join('\r\n')], { type: 'text/csv' })) }, word('csv'));
}
const pngButton = (name, canvas) =>
  el('button', { onclick: () => canvas.toBlob(blob => save(name, blob)) }, word('png'));

// ---- the page -------------------------------------------------------------------------------------
function applyTheme() {
  const dark = page.theme === 'dark' || (page.theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  for (const draw of page.draws) draw();
}
function toolbar() {
  const theme = el('select', { 'aria-label': word('theme'), onchange: event => { page.theme = event.target.value; applyTheme(); } },
    ['system', 'light', 'dark'].map(key => el('option', { value: key, selected: page.theme === key }, word(key))));
  const language = el('button', { lang: page.lang === 'en' ? 'ko' : 'en', onclick: () => { page.lang = page.lang === 'en' ? 'ko' : 'en'; build(); } }, word('other'));
  return el('div', { class: 'tools' }, theme, language);
}
const VIEWS = {};  // name → data → nodes
function build() {
  page.draws = [];
  document.documentElement.lang = page.lang;
  const title = word(DATA.view);
  const model = DATA.model ?? DATA.run?.model?.name ?? '';
  document.title = `${title} · ${model}`;
  const header = el('header', {}, el('h1', {}, title), el('span', { class: 'meta' }, model), toolbar());
  const main = el('main', {});
  document.body.replaceChildren(header, main, el('footer', {}, word('madeBy')), tip);
  main.append(...VIEWS[DATA.view](DATA));
  applyTheme();
  document.documentElement.dataset.ready = page.lang;
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', applyTheme);
