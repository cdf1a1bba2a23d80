#include "inference/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "trace/trace.h"

namespace cutaway::inference {

struct Scheduler::Answer {
  Answer(int64_t of, Request taken, kv::PagePool& pages)
      : number(of), request(std::move(taken)), sequence(pages, request.run, request.seq) {}

  int64_t number;
  Request request;
  SequenceState sequence;
  std::optional<Generation> generation;  // once it has begun
  bool cancelled = false, ended = false, preempted = false;

  trace::At at() const {
    return trace::At({sequence.run, sequence.seq, static_cast<int32_t>(generation->step()),
                      static_cast<int32_t>(generation->position()), -1});
  }
};

Scheduler::Scheduler(Runner& runner, kv::PagePool& pages,
                     std::shared_ptr<const text::Tokenizer> tokenizer,
                     const SchedulerOptions& options)
    : runner_(runner),
      pages_(pages),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      tree_(pages) {
  CUTAWAY_CHECK(!runner.edits());
}

Scheduler::~Scheduler() = default;

Result<int64_t> Scheduler::add(Request request) {
  CUTAWAY_SPAN(span, "inference::Scheduler::add", "tokens", request.prompt.size(), "max_tokens",
               request.options.max_tokens, "waiting", waiting());
  if (waiting() >= options_.max_waiting) {
    return Error{ErrorCode::kTooLarge,
                 "the queue is full: " + std::to_string(waiting()) + " requests are waiting",
                 "queue"};
  }
  CUTAWAY_TRY(check(request));
  auto answer = std::make_unique<Answer>(next_number_, std::move(request), pages_);
  // Whatever is wrong with it is said now.
  CUTAWAY_ASSIGN(Generation generation,
                 Generation::begin(tokenizer_, answer->sequence, answer->request.prompt,
                                   answer->request.options, false));
  answer->generation.emplace(std::move(generation));
  waiting_.push_back(std::move(answer));
  CUTAWAY_OUT(span, "number", next_number_);
  return next_number_++;
}

Status Scheduler::check(const Request& request) const {
  CUTAWAY_SPAN(span, "inference::Scheduler::check", "tokens", request.prompt.size());
  const arch::ModelShape& shape = runner_.model().shape();
  for (const int32_t token : request.prompt) {
    if (token >= 0 && token < shape.vocab) continue;
    return Error{ErrorCode::kInvalidArgument,
                 "token id " + std::to_string(token) + " is outside the vocabulary (0 to " +
                     std::to_string(shape.vocab - 1) + ")",
                 "prompt"};
  }
  // Alone it must fit: then it can always be finished, whoever has to wait.
  const int64_t pages = pages_.max_pages() * kernels::kTilePositions;
  const int64_t fits = shape.learned_positions ? std::min(pages, shape.context_length) : pages;
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t most = std::min(request.options.max_tokens, request.options.context - prompt);
  if (prompt + std::max<int64_t>(0, most - 1) <= fits)
    return {};  // the last choice is not computed
  std::string message = "a prompt of " + std::to_string(prompt) +
                        " tokens and an answer of up to " + std::to_string(most) +
                        "; there is room for " + std::to_string(fits);
  if (prompt <= fits) message += ", for an answer of at most " + std::to_string(fits - prompt + 1);
  return Error{ErrorCode::kTooLarge, message, prompt <= fits ? "max_tokens" : "prompt"};
}

void Scheduler::cancel(int64_t number) {
  CUTAWAY_SPAN(span, "inference::Scheduler::cancel", "number", number);
  for (const auto& answer : running_) answer->cancelled |= answer->number == number;
  for (const auto& answer : waiting_) answer->cancelled |= answer->number == number;
}

// Prompt or answer, each sequence's next tokens → one pass → a choice for each that has logits.
std::optional<Tick> Scheduler::tick() {
  CUTAWAY_SPAN(span, "inference::Scheduler::tick", "running", running(), "waiting", waiting());
  Tick tick;
  tick.number = ticks_;
  end_cancelled();
  begin_waiting();
  const std::vector<StepInput> inputs = gather(tick);
  if (inputs.empty()) {
    remove_ended();
    return std::nullopt;
  }
  ++ticks_;
  tick.sequences = std::ssize(inputs);
  const auto rows = runner_.step(inputs);
  int64_t row = 0;
  for (const StepInput& input : inputs) {
    const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& answer) {
      return &answer->sequence == input.sequence;
    });
    Answer& answer = **it;
    if (!rows.ok()) {
      end(answer, rows.error());
    } else if (input.logits != WantLogits::kNone) {
      const int64_t n = input.logits == WantLogits::kAll ? std::ssize(input.tokens) : 1;
      answer.generation->computed({rows->row(row), n, rows->d});
      row += n;
    }
  }
  choose_all();
  remove_ended();
  tick.waiting = waiting();
  tick.pages_in_use = pages_.pages_in_use();
  if (trace::enabled()) {
    trace::event("schedule", "tick", tick.number, "sequences", tick.sequences, "prompt_tokens",
                 tick.prompt_tokens, "answer_tokens", tick.answer_tokens, "waiting", tick.waiting,
                 "preempted", tick.preempted, "pages_in_use", tick.pages_in_use);
  }
  CUTAWAY_OUT(span, "sequences", tick.sequences, "guesses", tick.guesses, "evicted_pages",
              tick.evicted_pages);
  return tick;
}

void Scheduler::end_cancelled() {
  const auto ends = [&](Answer& answer) {
    const auto& asked = answer.request.options.cancelled;
    if (answer.ended || !(answer.cancelled || (asked && asked()))) return;
    answer.generation->cancel();
    end(answer, answer.generation->finish());
  };
  for (const auto& answer : running_) ends(*answer);
  // By index: what is called back may add to them.
  for (size_t i = 0; i < waiting_.size(); ++i) ends(*waiting_[i]);
  remove_ended();
}

void Scheduler::begin_waiting() {
  while (!waiting_.empty() && running() < options_.max_running) {
    Answer& answer = *waiting_.front();
    // Whoever gave its pages up begins again when those before it have left it room.
    const int64_t wanted = kv::Geometry::pages_for(answer.generation->position());
    const int64_t free = pages_.max_pages() - pages_.pages_in_use() + tree_.evictable();
    if (answer.preempted && !running_.empty() && wanted > free) return;
    if (!answer.generation->ended() && options_.prefix_reuse) {
      const trace::At at = answer.at();
      answer.generation->begin_with(tree_);
    }
    answer.preempted = false;
    // In the order of their numbers, so that the oldest gives its pages up last.
    auto place = std::find_if(running_.begin(), running_.end(),
                              [&](const auto& other) { return other->number > answer.number; });
    running_.insert(place, std::move(waiting_.front()));
    waiting_.pop_front();
    if (answer.generation->ended()) end(answer, answer.generation->finish());
  }
}

// Who chooses tokens gets one; what is left of the tick is shared by who still reads a prompt: half
// of it for the one that waits longest, the rest for those that need the least.
std::vector<std::pair<Scheduler::Answer*, int64_t>> Scheduler::share_out() const {
  std::vector<std::pair<Answer*, int64_t>> out;
  std::vector<Answer*> reading;
  for (const auto& answer : running_) {
    if (answer->generation->lacking() == 1) {
      out.emplace_back(answer.get(), 1);
    } else {
      reading.push_back(answer.get());
    }
  }
  if (reading.empty()) return out;
  int64_t left = std::max<int64_t>(1, options_.tick_tokens - std::ssize(out));
  const int64_t first = reading.front()->generation->lacking();
  const int64_t of_first = std::min(first, reading.size() == 1 ? left : (left + 1) / 2);
  const size_t at = out.size();
  out.emplace_back(reading.front(), of_first);
  left -= of_first;
  std::stable_sort(reading.begin() + 1, reading.end(), [](const Answer* a, const Answer* b) {
    return a->generation->lacking() < b->generation->lacking();
  });
  for (auto it = reading.begin() + 1; it != reading.end() && left > 0; ++it) {
    out.emplace_back(*it, std::min((*it)->generation->lacking(), left));
    left -= out.back().second;
  }
  out[at].second += std::min(left, first - of_first);
  return out;
}

std::vector<StepInput> Scheduler::gather(Tick& tick) {
  CUTAWAY_SPAN(span, "inference::Scheduler::gather", "running", running());
  std::vector<Answer*> chosen;
  std::vector<int64_t> tokens;
  for (const auto& [answer, n] : share_out()) {
    if (answer->preempted || !make_room(*answer, n, tick)) continue;
    // Guesses take what room there is; nobody gives pages up for them.
    const bool last = answer->generation->lacking() == 1;
    const int64_t more = last ? answer->request.options.draft_tokens : 0;
    const bool room =
        more > 0 && answer->sequence.kv.reserve(answer->sequence.length() + 1 + more).ok();
    chosen.push_back(answer);
    tokens.push_back(room ? n + more : n);
  }
  std::vector<StepInput> out;
  for (size_t i = 0; i < chosen.size(); ++i) {
    Answer& answer = *chosen[i];
    if (answer.preempted) continue;  // for one that found its room later
    const bool of_prompt = answer.generation->prefilling();
    const StepInput& input = out.emplace_back(answer.generation->next(tokens[i]));
    const int64_t n = std::ssize(input.tokens);
    const int64_t guesses = input.logits == WantLogits::kAll ? n - 1 : 0;
    (of_prompt ? tick.prompt_tokens : tick.answer_tokens) += n - guesses;
    tick.guesses += guesses;
  }
  // They wait in front of all that have not begun, the oldest first.
  for (auto it = running_.end(); it != running_.begin();) {
    --it;
    if (!(*it)->preempted) continue;
    waiting_.push_front(std::move(*it));
    it = running_.erase(it);
  }
  CUTAWAY_OUT(span, "sequences", out.size());
  return out;
}

// Pages for its next tokens: the pool's, the tree's, those of whoever came after it.
bool Scheduler::make_room(Answer& answer, int64_t tokens, Tick& tick) {
  const trace::At at = answer.at();
  CUTAWAY_SPAN(span, "inference::Scheduler::make_room", "tokens", tokens);
  for (;;) {
    const Status status = answer.sequence.kv.reserve(answer.sequence.length() + tokens);
    if (status.ok()) return true;
    if (const int64_t evicted = tree_.evict(kv::Geometry::pages_for(tokens) + 1); evicted > 0) {
      tick.evicted_pages += evicted;
      continue;
    }
    if (preempt_after(answer, tick)) continue;
    // A page that it shares in part is copied: it computes that part again instead.
    const int64_t whole = answer.sequence.length() / kernels::kTilePositions;
    if (answer.sequence.length() % kernels::kTilePositions != 0 &&
        answer.sequence.kv.pages()[static_cast<size_t>(whole)]->shared()) {
      answer.sequence.truncate(whole * kernels::kTilePositions);
      continue;
    }
    // The youngest waits for the others; alone it has met the end of the memory.
    const bool alone = std::none_of(running_.begin(), running_.end(), [&](const auto& other) {
      return other.get() != &answer && !other->ended && !other->preempted;
    });
    if (alone) {
      end(answer, status.error());
    } else {
      answer.sequence.truncate(0);
      answer.preempted = true;
      ++tick.preempted;
    }
    return false;
  }
}

// The youngest of those that came after it gives its pages up.
bool Scheduler::preempt_after(const Answer& answer, Tick& tick) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Answer& other = **it;
    if (&other == &answer) return false;
    if (other.ended || other.preempted || other.sequence.kv.page_count() == 0) continue;
    const trace::At at = other.at();
    CUTAWAY_SPAN(span, "inference::Scheduler::preempt", "number", other.number, "tokens",
                 other.sequence.length());
    other.sequence.truncate(0);
    other.preempted = true;
    ++tick.preempted;
    return true;
  }
  return false;
}

void Scheduler::choose_all() {
  for (const auto& owner : running_) {
    Answer& answer = *owner;
    // Several where guesses were right.
    while (!answer.ended && answer.generation->has_logits()) choose(answer);
  }
}

void Scheduler::choose(Answer& answer) {
  const trace::At at = answer.at();
  CUTAWAY_PHASE(token_span, trace::Phase::kGenerate, "inference::Scheduler::token", "step",
                answer.generation->step());
  if (answer.generation->step() == 0) share_prompt(answer);
  auto choice = answer.generation->choose();
  if (!choice.ok()) return end(answer, choice.error());
  CUTAWAY_OUT(token_span, "id", choice->id, "piece", tokenizer_->piece(choice->id), "text",
              choice->text);
  if (answer.request.on_choice && !answer.request.on_choice(*choice)) answer.generation->cancel();
  if (answer.generation->ended()) end(answer, answer.generation->finish());
}

// Whole pages: what others begin with while it goes on.
void Scheduler::share_prompt(const Answer& answer) {
  if (!options_.prefix_reuse) return;
  const int64_t n = answer.sequence.length() / kernels::kTilePositions * kernels::kTilePositions;
  tree_.insert(std::span(answer.sequence.tokens).first(static_cast<size_t>(n)), answer.sequence.kv);
}

void Scheduler::end(Answer& answer, Result<Outcome> outcome) {
  answer.ended = true;
  if (outcome.ok() && options_.prefix_reuse && answer.sequence.length() > 0) {
    tree_.insert(answer.sequence.tokens, answer.sequence.kv);
  }
  answer.sequence.truncate(0);
  if (answer.request.on_end) answer.request.on_end(std::move(outcome));
}

void Scheduler::remove_ended() {
  std::erase_if(running_, [](const auto& answer) { return answer->ended; });
  std::erase_if(waiting_, [](const auto& answer) { return answer->ended; });
}

}  // namespace cutaway::inference
