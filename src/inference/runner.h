// step(): one forward pass over tokens of one or more sequences. The only way to the transformer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kv/sequence.h"
#include "model/loaded_model.h"
#include "ops/pass.h"

namespace cutaway::inference {

// One sequence: its keys and values, and the tokens that they belong to. The i-th token is at
// absolute position i; tokens.size() == kv.length() between steps.
struct SequenceState {
  explicit SequenceState(kv::PagePool& pool, int64_t run_index = -1, int32_t seq_index = 0)
      : kv(pool), run(run_index), seq(seq_index) {}
  kv::Sequence kv;
  std::vector<int32_t> tokens;
  int64_t run;
  int32_t seq;
  // Some of the keys and values were computed under editors: they stand for no other run.
  bool edited = false;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  // Forgets the tokens from position n on.
  void truncate(int64_t n);
};

enum class WantLogits : uint8_t { kNone, kLast, kAll };

// Tokens to append to a sequence in this step.
struct StepInput {
  SequenceState* sequence = nullptr;
  std::span<const int32_t> tokens;
  WantLogits logits = WantLogits::kLast;
};

class Runner {
 public:
  // All outlive the runner. One thread uses it at a time.
  Runner(const model::LoadedModel& model, const kernels::KernelTable& table, ThreadPool& pool,
         bool precise);

  // Appends the tokens and returns the wanted logits, inputs in order, {rows, vocab}; valid until
  // the next step. Errors: kTooLarge when no page is left (then nothing was appended);
  // kInvalidArgument on a token id outside the vocabulary.
  Result<ops::Rows> step(std::span<const StepInput> inputs);

  // The residual stream x {rows, d_model} of any layer read as the last one's: logits {rows,
  // vocab}, with the bits that step() gives where x is the last layer's. No probe sees it.
  // `editors` change the final norm and the logits as at `positions`, one for each row (needed with
  // editors alone). Valid until the next unembed() or step(); what step() returned is so no longer.
  ops::Rows unembed(const ops::Rows& x, std::span<const int64_t> positions = {},
                    std::span<trace::Editor* const> editors = {});

  // Tokens that a sequence may come to hold; unless set, what the model was trained for. Some
  // rotary scalings depend on it, so that it stays the same while a sequence holds any.
  void set_context(int64_t tokens) { context_ = tokens; }

  // Watch every step from now on. Not owned; null removes all.
  void set_probes(std::vector<trace::Probe*> probes) { probes_ = std::move(probes); }

  // Change every step from now on: the keys and values of its sequences are then private to it. Not
  // owned; none removes all.
  void set_editors(std::vector<trace::Editor*> editors) { editors_ = std::move(editors); }
  bool edits() const { return !editors_.empty(); }

  // Sees the input of every product of every step from now on. Not owned; null: nobody.
  // Precondition: a precise runner.
  void set_watcher(ops::ProductWatcher* watcher) { watcher_ = watcher; }

  const model::LoadedModel& model() const { return model_; }
  const kernels::KernelTable& table() const { return table_; }
  ThreadPool& pool() const { return pool_; }

 private:
  const model::LoadedModel& model_;
  const kernels::KernelTable& table_;
  ThreadPool& pool_;
  bool precise_;
  int64_t context_;
  ops::Scratch scratch_;
  ops::Batch batch_;
  std::vector<trace::Probe*> probes_;
  std::vector<trace::Editor*> editors_;
  ops::ProductWatcher* watcher_ = nullptr;
};

}  // namespace cutaway::inference
