// Many answers at once: at every tick one forward pass over what each of them needs next. Requests
// join and leave at any tick, long prompts are computed piece by piece beside the others' tokens,
// and whoever has to give its pages up goes on later where it was. None of it changes a bit of any
// answer.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "inference/generation.h"
#include "kv/prefix_tree.h"

namespace cutaway::inference {

struct SchedulerOptions {
  int64_t max_running = 64;   // sequences in one pass
  int64_t max_waiting = 256;  // requests that have not begun; one more is refused
  int64_t tick_tokens = 512;  // of one pass, as long as any of them is of a prompt
  bool prefix_reuse = true;   // what others computed is not computed again
};

// One answer to be made. Called back on the thread that ticks, from where add() and cancel() may be
// called.
struct Request {
  std::vector<int32_t> prompt;
  DecodeOptions options;  // its prefill_chunk has no effect: the tick's tokens are shared out
  // Of each token; false ends the answer.
  std::function<bool(const Choice& choice)> on_choice;
  // Once: how it ended.
  std::function<void(Result<Outcome> outcome)> on_end;
  int64_t run = -1;  // for traces
  int32_t seq = 0;
};

// What a tick did (a record of the trace, too).
struct Tick {
  int64_t number = 0;
  int64_t sequences = 0, prompt_tokens = 0, answer_tokens = 0, guesses = 0;  // of its pass
  int64_t waiting = 0, preempted = 0, evicted_pages = 0, pages_in_use = 0;
};

class Scheduler {
 public:
  // All outlive it. The runner has no editors: what they change may not be shared.
  Scheduler(Runner& runner, kv::PagePool& pages, std::shared_ptr<const text::Tokenizer> tokenizer,
            const SchedulerOptions& options);
  ~Scheduler();

  // Takes a request; its number, for cancel(). Errors: those of Generation::begin;
  // kInvalidArgument (a token outside the vocabulary); kTooLarge when the pages, or the model's
  // positions, can never hold it (what they can is named), or when max_waiting are waiting.
  Result<int64_t> add(Request request);
  // Ends it with the next tick, wherever it is. Unknown numbers are of answers that have ended.
  void cancel(int64_t number);

  // One pass. Nothing when nobody needs one.
  std::optional<Tick> tick();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const kv::PrefixTree& tree() const { return tree_; }

 private:
  struct Answer;
  using Answers = std::list<std::unique_ptr<Answer>>;

  void end_cancelled();
  void begin_waiting();
  std::vector<StepInput> gather(Tick& tick);
  std::vector<std::pair<Answer*, int64_t>> share_out() const;
  bool make_room(Answer& answer, int64_t tokens, Tick& tick);
  bool preempt_after(const Answer& answer, Tick& tick);
  Status check(const Request& request) const;
  void choose_all();
  void choose(Answer& answer);
  void share_prompt(const Answer& answer);
  void end(Answer& answer, Result<Outcome> outcome);
  void remove_ended();

  Runner& runner_;
  kv::PagePool& pages_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  SchedulerOptions options_;
  kv::PrefixTree tree_;
  Answers running_;                              // in the order in which they were added
  std::deque<std::unique_ptr<Answer>> waiting_;  // likewise
  int64_t next_number_ = 0, ticks_ = 0;
};

}  // namespace cutaway::inference
