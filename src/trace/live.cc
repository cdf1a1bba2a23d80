#include "trace/live.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "trace/line_format.h"

namespace cutaway::trace {
namespace {

using Line = std::shared_ptr<const std::string>;

Field count_field(const char* key, uint64_t count) {
  Field field;
  field.key = key;
  field.kind = FieldKind::kUnsigned;
  field.u = count;
  return field;
}

// What one subscriber has not read yet.
class Queue {
 public:
  explicit Queue(LiveOptions options) : options_(std::move(options)) {}

  const LiveOptions& options() const { return options_; }
  bool wants(const Record& record) const {
    return record.level <= options_.level && (options_.run.empty() || options_.run == record.run);
  }

  // The tracer's thread. Whether the reader should be woken at once.
  bool push(const Line& line, const Record& record) {
    const std::lock_guard lock(mutex_);
    const bool room =
        lines_.size() < options_.max_lines && bytes_ + line->size() <= options_.max_bytes;
    // A queue that ran full takes nothing until half of it is read: one long gap, not many.
    const bool resumes =
        lines_.size() <= options_.max_lines / 2 && bytes_ <= options_.max_bytes / 2;
    if (dropped_ > 0 ? !resumes : !room) {
      if (dropped_++ == 0) at_gap_ = record;
      ++stats_.dropped;
      return false;
    }
    if (dropped_ > 0) push_gap();
    append(line);
    ++stats_.records;
    return lines_.size() == options_.max_lines / 2;
  }

  LiveStream::Batch take(size_t max_lines, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return !lines_.empty() || dropped_ > 0 || ended_; });
    if (lines_.empty() && dropped_ > 0) push_gap();
    LiveStream::Batch batch;
    while (!lines_.empty() && batch.lines.size() < max_lines) {
      bytes_ -= lines_.front()->size();
      batch.lines.push_back(std::move(lines_.front()));
      lines_.pop_front();
    }
    batch.ended = ended_ && lines_.empty() && dropped_ == 0;
    return batch;
  }

  void wake() { ready_.notify_all(); }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake();
  }
  LiveStream::Stats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  void append(Line line) {
    bytes_ += line->size();
    lines_.push_back(std::move(line));
  }

  void push_gap() {
    const Field fields[] = {count_field("records", dropped_)};
    Record record;
    record.kind = RecordKind::kEvent;
    record.phase = at_gap_.phase;
    record.time_ns = at_gap_.time_ns;
    record.wall_us = at_gap_.wall_us;
    record.name = "trace.dropped";
    record.run = options_.run;
    record.fields = fields;
    auto text = std::make_shared<std::string>();
    LineFormat().append_json(*text, record);
    append(std::move(text));
    dropped_ = 0;
  }

  const LiveOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ready_;
  std::deque<Line> lines_;
  size_t bytes_ = 0;
  uint64_t dropped_ = 0;  // since the last line
  Record at_gap_;         // the first of them; its run and fields are gone
  bool ended_ = false;
  LiveStream::Stats stats_;
};

}  // namespace

// The sink that the tracer knows. Shared by the hub, its streams and the tracer.
class LiveHub::Core final : public Sink, public std::enable_shared_from_this<LiveHub::Core> {
 public:
  explicit Core(Tracer& tracer) : tracer_(&tracer) {}

  void write(const Record& record) override {
    const std::lock_guard lock(queues_mutex_);
    Line plain, digested;  // made when a subscriber wants them
    for (const auto& queue : queues_) {
      if (!queue->wants(record)) continue;
      Line& line = queue->options().level == Level::kTensors ? digested : plain;
      if (line == nullptr) line = format(record, queue->options().level == Level::kTensors);
      if (queue->push(line, record)) queue->wake();
    }
  }

  // The tracer has nothing more for now: readers that wait get what there is.
  void flush() override {
    const std::lock_guard lock(queues_mutex_);
    for (const auto& queue : queues_) queue->wake();
  }

  void add(std::shared_ptr<Queue> queue) {
    const std::lock_guard lock(level_mutex_);
    {
      const std::lock_guard queues_lock(queues_mutex_);
      queues_.push_back(std::move(queue));
    }
    if (tracer_ == nullptr) return;
    if (!std::exchange(attached_, true)) {
      tracer_->add_sink(shared_from_this(), highest());
    } else {
      tracer_->set_level(this, highest());
    }
  }

  void remove(const std::shared_ptr<Queue>& queue) {
    const std::lock_guard lock(level_mutex_);
    {
      const std::lock_guard queues_lock(queues_mutex_);
      std::erase(queues_, queue);
    }
    if (tracer_ != nullptr) tracer_->set_level(this, highest());
  }

  void close() {
    const std::lock_guard lock(level_mutex_);
    if (attached_) tracer_->remove_sink(shared_from_this());
    tracer_ = nullptr;
    const std::lock_guard queues_lock(queues_mutex_);
    for (const auto& queue : queues_) queue->end();
  }

  size_t size() const {
    const std::lock_guard lock(queues_mutex_);
    return queues_.size();
  }

 private:
  // With the digests of tensors or, for a lower level, without.
  Line format(const Record& record, bool digests) {
    auto text = std::make_shared<std::string>();
    if (digests) {
      format_.append_json(*text, record);
      return text;
    }
    for (size_t i = 0; i < record.fields.size(); ++i) {
      fields_[i] = record.fields[i];
      if (fields_[i].kind == FieldKind::kTensor) fields_[i].tensor.has_digest = false;
    }
    Record plain = record;
    plain.fields = std::span(fields_).first(record.fields.size());
    format_.append_json(*text, plain);
    return text;
  }

  Level highest() const {
    const std::lock_guard lock(queues_mutex_);
    Level level = Level::kOff;
    for (const auto& queue : queues_) level = std::max(level, queue->options().level);
    return level;
  }

  // level_mutex_, then the tracer's, then queues_mutex_, then a queue's.
  std::mutex level_mutex_;
  Tracer* tracer_;
  bool attached_ = false;
  mutable std::mutex queues_mutex_;
  std::vector<std::shared_ptr<Queue>> queues_;
  // The tracer's thread's.
  LineFormat format_;
  std::array<Field, kMaxFields> fields_;
};

class LiveHub::Stream final : public LiveStream {
 public:
  Stream(std::shared_ptr<Core> core, std::shared_ptr<Queue> queue)
      : core_(std::move(core)), queue_(std::move(queue)) {}
  ~Stream() override { core_->remove(queue_); }

  Batch next(size_t max_lines, std::chrono::milliseconds timeout) override {
    return queue_->take(max_lines, timeout);
  }
  Stats stats() const override { return queue_->stats(); }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Queue> queue_;
};

LiveHub::LiveHub(Tracer& tracer) : core_(std::make_shared<Core>(tracer)) {}

LiveHub::~LiveHub() { core_->close(); }

std::unique_ptr<LiveStream> LiveHub::subscribe(LiveOptions options) {
  auto queue = std::make_shared<Queue>(std::move(options));
  auto stream = std::make_unique<Stream>(core_, queue);
  core_->add(std::move(queue));
  return stream;
}

size_t LiveHub::subscribers() const { return core_->size(); }

}  // namespace cutaway::trace
